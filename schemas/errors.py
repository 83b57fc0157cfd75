"""Every error that specmill raises on purpose: one small tree, a sentence each.

Messages name the row, the field, the allowed interval and the received value wherever there is one. `ERROR_KINDS` in the dataset's
`error.type` column are the class names below.
"""


class SpecmillError(Exception):
    """Root of the tree: anything specmill refuses to do, with a message for the person who asked."""


class DecodeError(SpecmillError, ValueError):
    """A message, spec or manifest that is not what its version says it is."""


class InputError(SpecmillError, ValueError):
    """A prompts file, or one line of it, that cannot become a row."""


class RunMismatchError(SpecmillError):
    """The output folder holds a run with another specification."""


class ModelError(SpecmillError):
    """A model folder or name that cannot be fetched, converted or loaded."""


class GrammarError(SpecmillError):
    """A JSON schema, regular expression or grammar that cannot be compiled."""


class HeadError(ModelError):
    """An MTP head file that does not fit its contract or its trunk."""


class RowError(SpecmillError):
    """One row that cannot run; it becomes an error row and its neighbours go on."""


class PromptTooLongError(RowError):
    """The prompt and its completion budget exceed the model's context length."""


class EmptyPromptError(RowError):
    """The prompt encodes to no token at all."""


class TemplateError(RowError):
    """The model's chat template refused the row's messages."""


class BadInputError(RowError):
    """A line of the prompts file that was kept as an error row (`--on-bad-input error-row`)."""


class NonFiniteLogitsError(RowError, ValueError):
    """Logits with NaN, +inf, or no finite value at all: they never become a distribution."""

    def __init__(self, nan: int, inf: int, size: int) -> None:
        super().__init__(f"logits must hold no NaN, no +inf and at least one finite value; received {nan} NaN and {inf} +inf among {size}")
        self.nan = nan
        self.inf = inf
        self.size = size


class ConstraintError(RowError):
    """The run's constraint gave up on the row: at some token it is too complex, or allows none of the model's tokens."""


class EngineCrashedError(RowError):
    """The engine process died while it held the row, more often than the attempt cap allows."""


class EngineError(SpecmillError):
    """The engine process failed as a whole: it did not start, or broke its protocol."""


class EngineStartError(EngineError):
    """The engine process died before it had loaded its model: the machine or the model is to blame, no shard."""


class BackendError(SpecmillError):
    """A shard that only workers of another backend class may compute (`--backend`)."""


class TooManyErrorsError(SpecmillError):
    """More rows fail than `--max-error-rate` allows: the run is misconfigured."""


class BrokerError(SpecmillError):
    """The broker cannot be started, reached or trusted."""


class CalibrationError(SpecmillError):
    """Accepted drafts and their acceptance probabilities contradict each other: the engine does not sample what it says."""


class LandingError(SpecmillError):
    """A part file that could not be written whole, or one that holds something else."""


class UnwritableError(LandingError):
    """A file that the disk or the store does not take now; nothing half-written is left of it."""


class LeaseLostError(SpecmillError):
    """Another worker holds the shard now; whatever this one produced is dropped."""


class RunCancelledError(SpecmillError):
    """The run's cancel flag is set."""
