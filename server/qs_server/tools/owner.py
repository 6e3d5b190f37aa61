"""Makes a tool that root has started act as the user who owns the directory that it works on.

The owner of a directory may put anything into it, also while a tool is at work: a link in place of a file or of a
directory. Root would follow it to any file of the machine, whatever was checked before. As the owner, a tool can do no
more than the owner could do without it, and what it makes belongs to the owner, whose server has to read it.
"""

import os
import pwd
from collections.abc import Iterable
from contextlib import suppress

from qs_storage.engine import StorageError


def become_owner(paths: Iterable[str]) -> None:
    """Becomes, for good, the first owner of these paths who is not root, if the process is root's. A link counts, and
    what it leads to. Paths that do not exist are left out: the tool says so itself. StorageError if that fails."""
    if os.geteuid() != 0:
        return
    for path in paths:
        for look in (os.lstat, os.stat):
            with suppress(OSError):
                found = look(path)
                if found.st_uid != 0:
                    _become(found, path)
                    return


def _become(owner: os.stat_result, path: str) -> None:
    try:
        user = pwd.getpwuid(owner.st_uid)
        group, groups = user.pw_gid, os.getgrouplist(user.pw_name, user.pw_gid)
    except KeyError:  # a user of another machine, or of a container
        group, groups = owner.st_gid, [owner.st_gid]
    try:
        os.setgroups(groups)
        os.setgid(group)
        os.setuid(owner.st_uid)
    except OSError as error:
        raise StorageError(
            f"{path} belongs to the user {owner.st_uid}, and root cannot act as that user ({error.strerror}): give the "
            "command as that user"
        ) from None
