"""What a peer's make(case) gives."""
from contextlib import nullcontext


class Call:
    """run() launches; outputs() are o, or dq, dk and dv, of the last run; context() surrounds many runs;
    keep is what run() points into."""

    def __init__(self, run, outputs, context=nullcontext, kernel=None, keep=()):
        self.run, self.outputs, self.context, self.kernel, self.keep = run, outputs, context, kernel, keep
