"""Sessions: what holds state and plans between calls."""

from ontrain.session.collector import collector as collector
from ontrain.session.description import PlanOptions, TrainingTask
from ontrain.session.export import (
    EXTERNAL_DATA_THRESHOLD as EXTERNAL_DATA_THRESHOLD,
    check_written as check_written,
    inference_model as inference_model,
    save_model as save_model,
    served_model as served_model,
    training_model as training_model,
)
from ontrain.session.failures import explained as explained
from ontrain.session.feeds import (
    FILE as FILE,
    MixedSizesError as MixedSizesError,
    ScalarError as ScalarError,
    Signature as Signature,
    check_feed as check_feed,
    check_feeds as check_feeds,
    check_shape as check_shape,
)
from ontrain.session.module_session import ModulePlan as ModulePlan, ModuleSession as ModuleSession
from ontrain.session.opsets import (
    OLDEST as OLDEST,
    check_opset as check_opset,
    import_opset as import_opset,
    with_operators_of as with_operators_of,
)
from ontrain.session.partial import without_inputs as without_inputs
from ontrain.session.planner import Planner as Planner, Structure as Structure
from ontrain.session.plans import PLANS as PLANS, Plan, make_plan
from ontrain.session.recent import Recent as Recent
from ontrain.session.selection import non_zero as non_zero, unique as unique
from ontrain.session.staged_session import StagedPlan as StagedPlan, StagedSession as StagedSession
from ontrain.session.training import Counters, Exchange, TrainingSession

__all__ = [
    "Counters", "Exchange", "Plan", "PlanOptions", "TrainingSession", "TrainingTask", "make_plan",
]  # fmt: skip
