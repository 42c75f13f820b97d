"""The ``@model`` decorator: what a function serves, how it is called, and what it may return."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import operator
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, ParamSpec, TypeVar, cast

import numpy as np

from .feedback import Feedback
from .forks import OneProcess, end_child
from .images import Faults, Fit, Fits, Given, Image, Inputs, Seen, see
from .opened import Pictures
from .pictures import PictureError
from .tensors import Array, DeclarationError, Tensor, TensorError, convert, describe, is_part

_REMEMBERED = 256
"""How many shapes of an output are remembered as right for a model."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Hook = Callable[[], Any]
HookT = TypeVar("HookT", bound=Hook)
FeedbackT = TypeVar("FeedbackT", bound="Callable[[Feedback], Any]")


@dataclass(frozen=True)
class Request:
    """One client's request inside a batch."""

    rows: int
    parameters: Mapping[str, object] = field(default_factory=dict)
    """The client's ``parameters``, its ``id``, and metadata that the server does not know."""
    priority: int = 0
    """0 is the most urgent, 9 the least."""
    trace: str = ""
    """The server's span of it, as W3C's ``traceparent``, if the server traces the request."""
    trace_state: str = ""
    """Other systems' data about that trace, as W3C's ``tracestate``: pass it on with ``trace``."""
    fits: Mapping[str, Fit] = field(default_factory=dict)
    """For a function of one row, how its pictures were made to fit, by the input's name."""
    metadata: Mapping[str, object] = field(default_factory=dict)
    """``parameters``, and all other metadata of a Shiva message as its client sent it, such as
    ``stream`` and ``seq``; without ``token``, and without ``user`` unless the model asks for it."""


@dataclass
class Batch:
    """The data of a batch besides its tensors.

    A function with a parameter called ``batch`` gets it; a per-row function asks for ``request``
    instead.
    """

    rows: int
    requests: Sequence[Request] = ()
    """The requests whose rows make up the batch, in order."""
    deadline: float | None = None
    """When the most urgent request's time is up, on the clock of :func:`time.monotonic`."""
    errors: dict[int, str] = field(default_factory=dict)
    """Rows that failed, and why."""
    invalid: set[int] = field(default_factory=set)
    """Those of them that were invalid themselves."""
    fits: Fits = field(default_factory=dict)
    """How the picture of each row was made to fit, by the name of the :class:`Image`."""
    traces: Sequence[str] = ()
    """``trace`` of each request that the server traces."""
    opened: dict[str, Pictures] = field(default_factory=dict, repr=False)  # for the SDK alone

    def __post_init__(self) -> None:
        self.requests = tuple(self.requests) or (Request(rows=1),) * self.rows

    def time_left(self) -> float | None:
        """Seconds until the earliest deadline, negative after it; None without a deadline."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def fail(self, row: int, message: object, *, invalid: bool = False) -> None:
        """Answer one row with an error, a text or an exception; its outputs are not used.

        ``invalid`` means that the row is to blame and not the model: its client gets InvalidInput
        in place of ContainerFailed.
        """
        if not 0 <= row < self.rows:
            raise IndexError(f"row {row} of a batch of {self.rows} rows")
        row = operator.index(row)  # numpy's integers cannot be written as JSON
        self.errors[row] = error_text(message) if isinstance(message, BaseException) else str(message)
        if invalid:
            self.invalid.add(row)

    def request_of(self, row: int) -> Request:
        """The request that a row belongs to."""
        first = 0
        for request in self.requests:
            first += request.rows
            if row < first:
                return request
        raise IndexError(f"row {row} of a batch of {self.rows} rows")


class Model(Generic[P, R]):
    """A function with its declaration. It can be called, and tested, like the function."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str,
        version: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        batched: bool | None,
        max_batch: int,
        per_row: bool,
        concurrency: int,
        platform: str,
        parameters: Mapping[str, object],
        health_interval: float,
        user: bool = False,
    ) -> None:
        self.function = function
        self._function: Callable[..., Any] = function
        self.name = name
        self.version = version
        self.inputs = tuple(
            one.alone() if batched is False and isinstance(one, Image) else one
            for one in _tensors(name, "inputs", inputs)
        )
        self.images = tuple((i, one) for i, one in enumerate(self.inputs) if isinstance(one, Image))
        """The inputs that are pictures, with their places."""
        self.outputs = _tensors(name, "outputs", outputs)
        self._batched = batched
        self.max_batch = max_batch
        self.per_row = per_row
        self.concurrency = concurrency
        self.platform = platform
        self.parameters = dict(parameters)
        self.health_interval = health_interval
        self.user = user
        self.warmup_hook: Hook | None = None
        self.health_hook: Hook | None = None
        self.feedback_hook: Callable[[Feedback], Any] | None = None
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is async
        )
        self._declare()
        self._positional, self._extra = _binding(function, self.inputs, "request" if per_row else "batch")
        self.sees_requests = bool(self._extra)
        """Whether the function is given the requests of its batch."""
        if not self.inputs and self.batched and not per_row and not self._extra:
            raise DeclarationError(
                f"model {name!r}: without inputs, only the batch says how many rows to return: give the function a "
                "parameter called batch, and return batch.rows rows; or say per_row=True or batched=False"
            )
        self._simple = self._positional and not self._extra
        counts = {tensor.ragged for tensor in self.outputs}
        self._returned = tuple(tensor for tensor in self.outputs if tensor.name not in counts)
        self._names = tuple(tensor.name for tensor in self.inputs)
        self._plain = self.outputs[0].dtype if len(self.outputs) == 1 and self.outputs[0].datatype != "BYTES" else None
        """The dtype of all arrays of the only output, None if the outputs are not that simple."""
        self._fitting: set[tuple[int, tuple[int, ...]]] = set()
        functools.update_wrapper(self, function, updated=())  # names of its attributes may clash

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"

    @property
    def batched(self) -> bool:
        """Whether several rows may arrive at once: as declared, or as the shapes imply."""
        return (*self.inputs, *self.outputs)[0].leads if self._batched is None else self._batched

    @property
    def cut_by_others(self) -> bool:
        """Whether a server for which each leading -1 counts rows would misread this model."""
        leads = all(tensor.leads for tensor in (*self.inputs, *self.outputs))
        return (leads and not self.batched) or any(tensor.ragged for tensor in self.outputs)

    def warmup(self, hook: HookT) -> HookT:
        """Decorator: run ``hook`` once, in the thread that computes, before the model registers.

        If it raises, the container ends with that error: a model that cannot warm up must not get
        requests.
        """
        self.warmup_hook = hook
        return hook

    def health(self, hook: HookT) -> HookT:
        """Decorator: ask ``hook`` every ``health_interval`` seconds, in a thread of its own.

        When it returns False or raises, the model leaves its servers after all its batches are
        answered, and returns once the hook reports health. None counts as healthy.
        """
        self.health_hook = hook
        return hook

    def feedback(self, hook: FeedbackT) -> FeedbackT:
        """Decorator: give ``hook``, sync or async, the feedback about this model's answers.

        It gets one :class:`Feedback` at a time, alongside the function: in a thread of its own, or
        in the model's event loop if both are async. No request waits for it. Feedback is delivered
        at most once, and dropped while the hook is too slow for it. An exception is logged and has
        no other effect. Each replica with a hook gets all feedback. Decorate before ``serve``.
        """
        self.feedback_hook = hook
        return hook

    def _declare(self) -> None:
        where = f"model {self.name!r}"
        if not self.name:
            raise DeclarationError('a model needs a name: @model(name="m", inputs=[...], outputs=[...])')
        for key, text in (("name", self.name), ("version", self.version)):
            if isinstance(text, int | float):
                raise DeclarationError(f'{where}: the {key} is a text: {key}="{text}"')
            if not isinstance(text, str) or not is_part(text):
                raise DeclarationError(f"{where}: the {key} must be printable text without '/', got {text!r}")
        if not self.outputs:
            raise DeclarationError(f"{where}: at least one output is needed")
        for kind, tensors in (("input", self.inputs), ("output", self.outputs)):
            names = [tensor.name for tensor in tensors]
            if len(set(names)) != len(names):
                raise DeclarationError(f"{where}: {kind} names must differ, got {names}")
        self._declare_batching(where)
        if self.max_batch < 0 or (self.max_batch > 1 and not self.batched):
            raise DeclarationError(f"{where}: max_batch={self.max_batch}, but the model is not batched")
        if self.per_row and not self.batched:
            raise DeclarationError(f"{where}: per_row needs a batched model, whose tensors lead with -1")
        for tensor in self.inputs:
            if tensor.ragged or (tensor.optional and self.batched):
                raise DeclarationError(
                    f"{where}: input {tensor}: only outputs can be ragged, and only inputs of a model with "
                    "batched=False optional"
                )
            if tensor.labels:
                raise DeclarationError(f"{where}: input {tensor}: only outputs can have labels")
            if tensor.format and len(tensor.shape) - self.batched != 3:
                raise DeclarationError(f"{where}: input {tensor}: a format is of 3 dimensions beside that of rows")
        for _, image in self.images:
            image.check(where, {tensor.name for tensor in self.inputs}, batched=self.batched, per_row=self.per_row)
        for tensor in self.outputs:
            self._declare_output(where, tensor)
        if self.concurrency < 1:
            raise DeclarationError(f"{where}: concurrency must be at least 1, got {self.concurrency}")
        if not self.health_interval > 0:
            raise DeclarationError(f"{where}: health_interval must be positive, got {self.health_interval}")
        try:
            json.dumps(self.parameters, allow_nan=False)
        except (TypeError, ValueError) as e:
            raise DeclarationError(f"{where}: the parameters must be JSON: {e}") from e

    def _declare_batching(self, where: str) -> None:
        """Refuse ambiguous and contradictory declarations. Nothing is guessed."""
        tensors = (*self.inputs, *self.outputs)
        leading = sum(tensor.leads for tensor in tensors)
        ways = (
            "say batched=True if the first dimension of every tensor counts rows, one for each item to be answered, "
            "or batched=False if each request is one item and no dimension counts rows"
        )
        if self._batched is False or (leading == 0 and self._batched is None):
            return
        if leading != len(tensors):
            said = "batched=True" if self._batched else "which could mean two things"
            raise DeclarationError(
                f"{where}: {leading} of {len(tensors)} inputs and outputs lead with -1, {said}: {ways} "
                f"(got {', '.join(map(str, tensors))})"
            )
        if self._batched is None and not self.per_row and self.max_batch < 2:
            for tensor in self.inputs:
                if isinstance(tensor, Image):
                    continue  # its dimensions have names
                if len(tensor.shape) == 1 or -1 in tensor.shape[1:]:
                    raise DeclarationError(f"{where}: input {tensor} could mean two things: {ways}")
            if not self.inputs:
                raise DeclarationError(
                    f"{where}: output {self.outputs[0]} of a model without inputs could mean two things: {ways}"
                )

    def _declare_output(self, where: str, tensor: Tensor) -> None:
        if tensor.optional:
            raise DeclarationError(f"{where}: output {tensor}: only inputs can be optional")
        if isinstance(tensor, Image):
            raise DeclarationError(f"{where}: output {tensor}: only inputs can be images")
        if tensor.format:
            raise DeclarationError(f"{where}: output {tensor}: only inputs can have a format")
        if tensor.labels and not tensor.ranked:
            raise DeclarationError(f"{where}: output {tensor}: labels are for values that can be ranked")
        if not tensor.ragged:
            return
        if not self.batched or -1 in tensor.shape[1:]:
            raise DeclarationError(
                f"{where}: output {tensor}: a ragged output needs a batched model, and a size for every "
                "dimension but the first"
            )
        counts = next((other for other in self.outputs if other.name == tensor.ragged), None)
        if counts is None or counts.datatype not in ("INT32", "INT64") or counts.shape != (-1,) or counts.ragged:
            raise DeclarationError(
                f'{where}: output {tensor}: "{tensor.ragged}" must be another output, INT32 or INT64 of shape [-1]'
            )

    @property
    def returned(self) -> tuple[Tensor, ...]:
        """The outputs that the function returns: all but the counts of ragged ones."""
        return self._returned

    # One batch through the function, in a compute thread.

    def run(self, given: Sequence[Given], batch: Batch) -> list[Array]:
        """Call the function on the inputs, and return its outputs; both in declared order."""
        if self.is_async:
            return asyncio.run(self.run_async(given, batch))
        return self.call(self.see(given, batch), batch)

    def call(self, inputs: Inputs, batch: Batch) -> list[Array]:
        """``run`` with inputs whose pictures are pixels, for a function that is not async."""
        arrays, faults = inputs
        if faults and len(faults) == batch.rows:
            return self._nothing(batch)
        if not self.per_row:
            pid = os.getpid()
            try:
                value = self._function(*arrays) if self._simple else self._call(arrays, batch)
            finally:
                if os.getpid() != pid:  # as OneProcess, without its calls for each small request
                    end_child(sys.exc_info()[1])
            return self._outputs(value, batch)
        values: list[object] = []
        for row in range(batch.rows):
            if row in faults:
                values.append(faults[row])
                continue
            try:
                with OneProcess():
                    values.append(self._call(_row_of(arrays, row), self._request_of(batch, row)))
            except Exception as e:
                values.append(e)
        try:
            return self._stack(values, batch)
        finally:
            values.clear()  # exceptions refer to this frame: a cycle would keep the inputs

    async def run_async(self, given: Sequence[Given], batch: Batch) -> list[Array]:
        """Like ``run`` for an async function; the rows of a per-row function run concurrently."""
        call = cast(Callable[..., Coroutine[Any, Any, object]], self._call)
        arrays, faults = await asyncio.to_thread(self.see, given, batch) if self.images else (given, {})
        if faults and len(faults) == batch.rows:
            return self._nothing(batch)
        if not self.per_row:
            with OneProcess():
                value = await call(arrays, batch)
            return self._outputs(value, batch)

        async def one(row: int) -> object:
            if row in faults:
                raise faults[row]
            with OneProcess():
                return await call(_row_of(arrays, row), self._request_of(batch, row))

        rows = (contained(one(row)) for row in range(batch.rows))
        return self._stack(await asyncio.gather(*rows, return_exceptions=True), batch)

    def see(self, given: Sequence[Given], batch: Batch) -> Inputs:
        """Make pixels of pictures. A row whose picture cannot be used fails alone."""
        if not self.images:
            return given, {}
        faults: Faults = {}
        seen = cast(list[Seen], list(given))
        for i, image in self.images:
            if (one := given[i]) is not None:
                seen[i] = see(image, one, self.batched, batch.fits, faults, batch.opened.get(image.name))
        for row, fault in faults.items():
            batch.fail(row, str(fault), invalid=True)
        return seen, faults

    def _nothing(self, batch: Batch) -> list[Array]:
        """Outputs for rows that have all failed: any values, of any size that is declared as -1."""
        outputs = []
        for tensor in self.outputs:
            shape = [max(size, 1) for size in tensor.shape]
            if self.batched:
                shape[0] = 0 if tensor.ragged else batch.rows
            outputs.append(np.full(shape, b"" if tensor.datatype == "BYTES" else 0, tensor.dtype))
        return outputs

    def _request_of(self, batch: Batch, row: int) -> Request:
        """The request of a row, for a function of one row."""
        request = batch.request_of(row)
        if batch.fits and self._extra:
            request = replace(request, fits={name: fits[row] for name, fits in batch.fits.items()})
        return request

    def _call(self, arrays: Sequence[Given] | Sequence[Seen], extra: Batch | Request) -> Any:
        kwargs: dict[str, object] = {} if self._positional else dict(zip(self._names, arrays, strict=True))
        if self._extra:
            kwargs[self._extra] = extra
        return self._function(*arrays, **kwargs) if self._positional else self._function(**kwargs)

    def _outputs(self, value: object, batch: Batch) -> list[Array]:
        if self._plain is None or type(value) is not np.ndarray or value.dtype != self._plain:
            return self._checked(value, batch)
        fitting = self._fitting  # nearly every array is like one that was checked before
        if (batch.rows, value.shape) not in fitting:
            self._checked(value, batch)
            if len(fitting) >= _REMEMBERED:
                fitting.clear()
            fitting.add((batch.rows, value.shape))
        return [value]

    def _checked(self, value: object, batch: Batch) -> list[Array]:
        arrays: dict[str, Array] = {}
        for tensor, part in zip(self.returned, self._in_order(value), strict=True):
            if tensor.ragged:
                self._pack(arrays, tensor, self._rows_of(tensor, part, batch))
                continue
            array = convert(tensor, part)
            if not tensor.accepts(array.shape):
                raise TensorError(
                    f'output "{tensor.name}": declared {tensor.datatype} {list(tensor.shape)}, '
                    f"returned {describe(array)}"
                )
            if self.batched and array.shape[0] != batch.rows:
                raise TensorError(
                    f'output "{tensor.name}": {batch.rows} rows came in, {array.shape[0]} went out ({describe(array)})'
                )
            arrays[tensor.name] = array
        return [arrays[tensor.name] for tensor in self.outputs]

    def _rows_of(self, tensor: Tensor, value: object, batch: Batch) -> list[Array]:
        """A function's value for a ragged output of a batch: an array for each row."""
        if not isinstance(value, list | tuple) or len(value) != batch.rows:
            got = f"{len(value)}" if isinstance(value, list | tuple) else f"one {type(value).__name__}"
            raise TensorError(f'output "{tensor.name}" is ragged: expected a list of {batch.rows} arrays, got {got}')
        rows = []
        for row, part in enumerate(value):
            array = _filled(tensor, convert(tensor, part))
            if not tensor.accepts(array.shape):
                raise TensorError(
                    f'output "{tensor.name}": declared {tensor.datatype} {list(tensor.shape)} for each row, '
                    f"returned {describe(array)} for row {row}"
                )
            rows.append(array)
        return rows

    def _pack(self, arrays: dict[str, Array], tensor: Tensor, rows: Sequence[Array]) -> None:
        """Put the rows of a ragged output one after the other, and count them."""
        arrays[tensor.name] = np.concatenate(rows) if rows else np.empty(0, tensor.dtype)
        counter = next(other for other in self.outputs if other.name == tensor.ragged)
        counts = np.array([len(row) for row in rows], counter.dtype)
        before = arrays.setdefault(counter.name, counts)
        if differ := np.flatnonzero(before != counts).tolist():
            raise TensorError(
                f'outputs that "{counter.name}" counts differ in row {differ[0]}: "{tensor.name}" has '
                f"{counts[differ[0]]}, one before it {before[differ[0]]}"
            )

    def _in_order(self, value: object) -> list[object]:
        if type(value) is np.ndarray and len(self._returned) == 1:
            return [value]
        names = [tensor.name for tensor in self.returned]
        if isinstance(value, Mapping):
            if set(value) != set(names):
                raise TensorError(f"outputs {names} are declared, the function returned {sorted(map(str, value))}")
            return [value[name] for name in names]
        if isinstance(value, tuple) or (isinstance(value, list) and len(names) > 1):
            if len(value) != len(names):
                raise TensorError(f"outputs {names} are declared, the function returned {len(value)} values")
            return list(value)
        if value is None:
            raise TensorError(f"outputs {names} are declared, the function returned None")
        if len(names) > 1:
            raise TensorError(f"outputs {names} are declared, the function returned one {type(value).__name__}")
        return [value]

    def _stack(self, values: Sequence[object], batch: Batch) -> list[Array]:
        """Stack the values of single rows; exceptions become the errors of their rows."""
        rows: list[list[Array] | None] = []
        for row, value in enumerate(values):
            if isinstance(value, BaseException):
                batch.fail(row, error_text(value), invalid=isinstance(value, PictureError))
                rows.append(None)
                continue
            try:
                rows.append(self._row(value))
            except Exception as e:
                batch.fail(row, error_text(e))
                rows.append(None)
        arrays: dict[str, Array] = {}
        for i, tensor in enumerate(self.returned):
            cells = [None if row is None else row[i] for row in rows]
            if tensor.ragged:
                nothing = np.empty((0, *tensor.shape[1:]), tensor.dtype)
                self._pack(arrays, tensor, [nothing if cell is None else cell for cell in cells])
            else:
                arrays[tensor.name] = self._column(tensor, cells)
        return [arrays[tensor.name] for tensor in self.outputs]

    def _row(self, value: object) -> list[Array]:
        """The arrays of one row's value. Ragged outputs that share counts have one length."""
        cells: list[Array] = []
        counted: dict[str, tuple[str, int]] = {}
        for tensor, part in zip(self.returned, self._in_order(value), strict=True):
            array = convert(tensor, part)
            if tensor.ragged:
                array = _filled(tensor, array)
            if not tensor.accepts(array.shape if tensor.ragged else (1, *array.shape)):
                raise TensorError(
                    f'output "{tensor.name}": declared {tensor.datatype} {list(tensor.shape)}, '
                    f"one row returned {describe(array)}"
                )
            if tensor.ragged:
                other, n = counted.setdefault(tensor.ragged, (tensor.name, len(array)))
                if n != len(array):
                    raise TensorError(
                        f'outputs "{other}" and "{tensor.name}" are both counted by "{tensor.ragged}", and one row '
                        f"returned {n} and {len(array)}"
                    )
            cells.append(array)
        return cells

    @staticmethod
    def _column(tensor: Tensor, cells: Sequence[Array | None]) -> Array:
        shape = next((cell.shape for cell in cells if cell is not None), None)
        if shape is None:  # every row failed: any size will do where the declaration leaves it open
            shape = tuple(max(dim, 1) for dim in tensor.shape[1:])
        out = np.full((len(cells), *shape), b"" if tensor.datatype == "BYTES" else 0, tensor.dtype)
        for row, cell in enumerate(cells):
            if cell is None:
                continue
            if cell.shape != shape:
                raise TensorError(
                    f'output "{tensor.name}": the rows of one batch must agree in shape, '
                    f"got {list(shape)} and, in row {row}, {list(cell.shape)}; if they cannot, declare the output "
                    "ragged, or pad it and return the counts as another output, or say batched=False"
                )
            out[row, ...] = cell
        return out


def _tensors(name: str, key: str, tensors: object) -> tuple[Tensor, ...]:
    """The declared tensors; raises DeclarationError if they are given in another form."""
    if isinstance(tensors, Tensor):
        raise DeclarationError(f"model {name!r}: {key} is a list: {key}=[Tensor(...)]")
    if not isinstance(tensors, Sequence) or isinstance(tensors, str):
        raise DeclarationError(f"model {name!r}: {key} is a list of Tensor(name, datatype, shape), got {tensors!r}")
    for one in tensors:
        if not isinstance(one, Tensor):
            raise DeclarationError(f"model {name!r}: {key} has {one!r}, expected Tensor(name, datatype, shape)")
    return tuple(tensors)


def _row_of(arrays: Sequence[Given] | Sequence[Seen], row: int) -> list[Array | None]:
    return [None if array is None else array[row] for array in cast(Sequence[Seen], arrays)]


def _filled(tensor: Tensor, array: Array) -> Array:
    """An empty list, which does not show its element's shape, in the declared shape."""
    return array.reshape(0, *tensor.shape[1:]) if array.shape == (0,) else array


def _binding(function: Callable[..., Any], inputs: Sequence[Tensor], extra: str) -> tuple[bool, str]:
    """How to call the function: (inputs by position, name of the extra parameter or "")."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some compiled callables have no signature: match by position
        return True, ""
    names = [tensor.name for tensor in inputs]
    parameters = signature.parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    positional = bool(kinds & {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL})
    use_extra = extra if extra in parameters and extra not in names else ""
    kwargs = {use_extra: None} if use_extra else {}
    try:
        if positional:
            signature.bind(*names, **kwargs)
        else:
            signature.bind(**dict.fromkeys(names), **kwargs)
    except TypeError as e:
        raise DeclarationError(
            f"{getattr(function, '__name__', function)}{signature} cannot be called with the inputs {names}: {e}; "
            "name its parameters like the inputs, or take them in order with (first, second, /) or (*inputs)"
        ) from e
    leading = [one.name for one in parameters.values() if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    return positional or leading[: len(names)] == names, use_extra


async def contained(value: Awaitable[T]) -> T:
    """Await a value in a task of its own. SystemExit fails the task, not the whole event loop."""
    try:
        return await value
    except (SystemExit, KeyboardInterrupt) as e:
        raise RuntimeError(error_text(e)) from e


def error_text(error: BaseException) -> str:
    """An exception's text for clients: its type and text, or just the text if it is ours."""
    try:
        text = str(error)
    except Exception:  # its own text cannot be made
        text = ""
    if isinstance(error, TensorError | PictureError):
        return text
    if isinstance(error, ValueError) and "read-only" in text:  # numpy's text
        text += "; inputs are read-only views of what was received: work on a copy, as x = x.copy()"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_declared: list[Model[..., Any]] = []


def declared_models() -> list[Model[..., Any]]:
    """Every model that ``@model`` made in this process, in order."""
    return list(_declared)


def model(
    bare: object = None,
    /,
    *,
    name: str = "",
    inputs: Sequence[Tensor] = (),
    outputs: Sequence[Tensor] = (),
    version: str = "1",
    batched: bool | None = None,
    max_batch: int = 0,
    per_row: bool = False,
    concurrency: int = 1,
    platform: str = "python",
    parameters: Mapping[str, object] | None = None,
    health_interval: float = 5.0,
    user: bool = False,
) -> Callable[[Callable[P, R]], Model[P, R]]:
    """Make a function, sync or async, a model that :func:`shiva_container.serve` serves.

    The function gets one numpy array per input and returns one per output: a single array, a tuple
    in declared order, or a dict by name. Its parameters are matched to the inputs by name, or by
    position if they are positional-only (``def f(a, b, /)``) or ``*inputs``. Inputs are
    read-only views of the received frames. An exception answers the whole batch with its type
    and text. A model may have no inputs: each request is then one row.

    ``batched``
        True: the first dimension of every tensor is -1 and counts rows, and the function gets the
        rows of several requests at once. False: it gets one request at a time, in the shapes that
        the client sent, with -1 anywhere; inputs may be optional and dimensions 0. It may be left
        out where the shapes can only mean one of the two: no leading -1 at all, or ``per_row``, or
        a ``max_batch`` above 1, or rows whose size is declared, as in [-1, 28, 28]. An input such
        as [-1] could be many numbers or one clip of any length: that is refused. So is an output
        that leads with -1 of a model without inputs.
    ``max_batch``
        the most rows in one batch; 0 leaves it to the server.
    ``per_row``
        the function takes and returns single rows (no leading dimension); an exception fails its
        row only. Without it, declare a parameter ``batch`` and call ``batch.fail(row, text)``.
    ``concurrency``
        how many batches may be in the function at once: threads of a sync function, tasks of an
        async one.
    ``user``
        ``request.parameters["user"]`` is the user of each request, if the client names one. The
        server's cache keeps the answers of each user apart.
    ``parameters``, ``platform``
        shown with the model's metadata by the server.
    """

    if bare is not None:
        raise DeclarationError(
            f"@model says what the function serves: "
            f'@model(name="{getattr(bare, "__name__", "m")}", inputs=[Tensor(...)], outputs=[Tensor(...)])'
        )

    def decorate(function: Callable[P, R]) -> Model[P, R]:
        made = Model(
            function,
            name=name,
            version=version,
            inputs=inputs,
            outputs=outputs,
            batched=batched,
            max_batch=max_batch,
            per_row=per_row,
            concurrency=concurrency,
            platform=platform,
            parameters=parameters or {},
            health_interval=health_interval,
            user=user,
        )
        if any(str(other) == str(made) for other in _declared):
            raise DeclarationError(f"model {made} is declared twice in this process")
        _declared.append(made)
        return made

    return decorate
