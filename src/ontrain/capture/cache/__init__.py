"""Captured graphs on disk, so that a second process need not trace a module again; off unless asked for.

An entry is used only if all of this is what it was when the entry was made:

- the structure of the module and of the call: classes and the code of their functions, plain attributes,
  configuration, modes, shapes of parameters and buffers, ties, dtypes, what of torch's global state a forward may see,
  and the versions of torch, Python, ontrain and the module's packages (`question`);
- the Python files that forward ran through, and of packages that are not installed all that were loaded;
- the operators that forward calls now, with their arguments and the flow of values, found by running it on tensors
  without values at the sizes of the entry (`trace`);
- the conditions on sizes that the graph was traced under (`Guards`).

What cannot be compared is not cached: hooks, tensors in attributes, objects without plain contents, classes that are
made in functions.
"""

from ontrain.capture.cache.cache import CaptureCache, open_cache

__all__ = ["CaptureCache", "open_cache"]
