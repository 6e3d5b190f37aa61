"""Gives methods made of calls a signature, a name and a docstring, for help() and editors."""

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
    """Gives a method the name, docstring, parameters and return type of its call.

    owner: the name of the method's class; iterator: replaces the return type of a paged call; returns: the return type,
    where the call does not tell. The call's annotations must be objects, not strings.
    """
    functools.update_wrapper(method, call)
    signature = inspect.signature(call)
    if returns is None:
        given = get_args(signature.return_annotation)  # Generator[yield, send, return]
        returns = given[2] if given[2] is not type(None) else None
        if get_origin(given[1]) is list:  # a paged call: the method iterates over the entries
            returns = iterator[get_args(given[1])[0]]
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[this, *signature.parameters.values()], return_annotation=returns
    )
    method.__qualname__ = f"{owner}.{call.__name__}"
    method.__annotations__ = {**call.__annotations__, "return": returns}
