import sys
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, overload

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    from typing_extensions import Buffer

__version__: str
TIMEOUT: float
STALL: float

Op = Literal["sum", "prod", "max", "min", "avg", "and", "or", "xor"]
DataType = Literal["f32", "f64", "f16", "bf16", "i8", "u8", "i32", "u32", "i64", "u64", "items"]
Transport = Literal["auto", "shm", "verbs", "tcp"]

class SupportsDLPack(Protocol):
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Store(Protocol):
    def set(self, key: str, value: bytes, /) -> None: ...
    def get(self, key: str, seconds: float, /) -> bytes | None: ...
    def delete(self, key: str, /) -> None: ...

Memory = Buffer | SupportsDLPack

class RdmaError(RuntimeError):
    rank: int | None
    cause: str
    host: str | None
    operation: str | None

class InvalidArgument(RdmaError, ValueError): ...
class RdmaTimeout(RdmaError, TimeoutError): ...

class Work:
    def wait(self, timeout: float | None = None) -> Any: ...
    def is_done(self) -> bool: ...
    def fileno(self) -> int: ...
    def __await__(self) -> Generator[Any, None, Any]: ...

class Communicator:
    rank: int
    ranks: int
    transports: str
    @classmethod
    def meet(
        cls,
        rank: int | None = None,
        world: int | None = None,
        root: str | None = None,
        *,
        store: Store | None = None,
        directory: str | None = None,
        name: str | None = None,
        transport: Transport = "auto",
        device: str = "any",
        timeout: float = ...,
        stall: float = ...,
        limit: float | None = None,
        compare: bool = False,
        job_key: bool | None = None,
    ) -> Communicator: ...
    def all_reduce(
        self,
        input: Memory,
        output: Memory | None = None,
        op: Op = "sum",
        *,
        dtype: DataType | None = None,
        async_op: bool = False,
    ) -> Work | None: ...
    def all_gather(
        self,
        input: Memory,
        output: Memory,
        counts: Sequence[int] | None = None,
        *,
        dtype: DataType | None = None,
        async_op: bool = False,
    ) -> Work | None: ...
    def reduce_scatter(
        self,
        input: Memory,
        output: Memory,
        op: Op = "sum",
        counts: Sequence[int] | None = None,
        *,
        dtype: DataType | None = None,
        async_op: bool = False,
    ) -> Work | None: ...
    def all_to_all(
        self,
        input: Memory,
        output: Memory,
        counts: Sequence[int] | None = None,
        *,
        dtype: DataType | None = None,
        async_op: bool = False,
    ) -> Work | list[int] | None: ...
    def broadcast(
        self, memory: Memory, root: int = 0, *, dtype: DataType | None = None, async_op: bool = False
    ) -> Work | None: ...
    def reduce(
        self,
        input: Memory,
        output: Memory | None = None,
        root: int = 0,
        op: Op = "sum",
        *,
        dtype: DataType | None = None,
        async_op: bool = False,
    ) -> Work | None: ...
    def gather(
        self,
        input: Memory,
        output: Memory | None = None,
        root: int = 0,
        counts: Sequence[int] | None = None,
        *,
        dtype: DataType | None = None,
        async_op: bool = False,
    ) -> Work | None: ...
    def scatter(
        self,
        input: Memory | None,
        output: Memory,
        root: int = 0,
        counts: Sequence[int] | None = None,
        *,
        dtype: DataType | None = None,
        async_op: bool = False,
    ) -> Work | None: ...
    @overload
    def send(self, memory: Memory, to: int, tag: int = 0, *, async_op: Literal[False] = False) -> None: ...
    @overload
    def send(self, memory: Memory, to: int, tag: int = 0, *, async_op: Literal[True]) -> Work: ...
    @overload
    def recv(self, memory: Memory, from_: int | None = None, tag: int = 0, *, async_op: Literal[False] = False) -> int: ...
    @overload
    def recv(self, memory: Memory, from_: int | None = None, tag: int = 0, *, async_op: Literal[True]) -> Work: ...
    def barrier(self, *, async_op: bool = False) -> Work | None: ...
    def abort(self, reason: str) -> None: ...
    def close(self, timeout: float | None = None) -> None: ...
    @property
    def is_closed(self) -> bool: ...
    def __enter__(self) -> Communicator: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

def init(
    rank: int | None = None,
    world: int | None = None,
    root: str | None = None,
    *,
    store: Store | None = None,
    directory: str | None = None,
    name: str | None = None,
    transport: Transport = "auto",
    device: str = "any",
    timeout: float = ...,
    stall: float = ...,
    limit: float | None = None,
    compare: bool = False,
    job_key: bool | None = None,
) -> Communicator: ...
