"""The face that a call has as a method of a client: its signature, its name and its text, for help() and editors."""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_origin


def copy_signature(
    method: Callable[..., Any],
    call: Callable[..., Any],
    owner: str,
    *,
    iterator: Any = Iterator,
    returns: Any = None,
) -> None:
    """Gives a method the name, the documentation and the parameters of its call, and the type that the call returns.

    owner: the class that the method is of; iterator: what it returns instead of pages; returns: the type, where the
    call does not say it. The call's annotations must be objects, not strings.
    """
    functools.update_wrapper(method, call)
    signature = inspect.signature(call)
    if returns is None:
        given = get_args(signature.return_annotation)  # of Generator[yields, is sent, returns]
        returns = given[2] if given[2] is not type(None) else None
        if get_origin(given[1]) is list:  # is sent pages: the method iterates over what they hold
            returns = iterator[get_args(given[1])[0]]
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[this, *signature.parameters.values()], return_annotation=returns
    )
    method.__qualname__ = f"{owner}.{call.__name__}"
    method.__annotations__ = {**call.__annotations__, "return": returns}
