// The operator audio.Snake for onnxruntime: y = x + sin(alpha * x)^2 / alpha, element by element, in float32.
//
//     g++ -std=c++20 -O2 -fPIC -shared -I "$ONNXRUNTIME_INCLUDE" snake.cc -o libsnake.so
//
// ONNXRUNTIME_INCLUDE is the folder of onnxruntime_cxx_api.h, of the version of onnxruntime that runs the library or of
// an older one. onnxruntime hands itself over when it loads the library, so nothing is linked.

#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>
#undef ORT_API_MANUAL_INIT

#include <cmath>
#include <cstdint>

namespace {

struct Kernel {
  explicit Kernel(const OrtKernelInfo* info) : alpha(Ort::ConstKernelInfo(info).GetAttribute<float>("alpha")) {}

  void Compute(OrtKernelContext* raw) {
    Ort::KernelContext context(raw);
    auto x = context.GetInput(0);
    auto shape = x.GetTensorTypeAndShapeInfo();
    auto y = context.GetOutput(0, shape.GetShape());
    const float* from = x.GetTensorData<float>();
    float* to = y.GetTensorMutableData<float>();
    for (std::size_t i = 0; i < shape.GetElementCount(); ++i) {
      const float wave = std::sin(alpha * from[i]);
      to[i] = from[i] + wave * wave / alpha;
    }
  }

  float alpha;
};

struct Snake : Ort::CustomOpBase<Snake, Kernel> {
  void* CreateKernel(const OrtApi&, const OrtKernelInfo* info) const { return new Kernel(info); }
  const char* GetName() const { return "Snake"; }
  std::size_t GetInputTypeCount() const { return 1; }
  std::size_t GetOutputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetInputType(std::size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
};

}  // namespace

// onnxruntime calls this function of every library that is registered.
extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* raw, const OrtApiBase* base) {
  Ort::InitApi(base->GetApi(ORT_API_VERSION));
  static const Snake snake;
  static Ort::CustomOpDomain domain{nullptr};
  try {
    if (!domain) {
      domain = Ort::CustomOpDomain("audio");
      domain.Add(&snake);
    }
    Ort::UnownedSessionOptions(raw).Add(domain);
  } catch (const Ort::Exception& error) {
    return Ort::Status(error).release();
  }
  return nullptr;
}
