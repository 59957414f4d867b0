"""What predictions are written as, by the ending of the name; it stands here since help lists it, and must not load the readers."""

from calibrant._files import (
    PathLike as PathLike,
)
from calibrant._files import (
    as_path as as_path,
)
from calibrant._files import (
    atomic_write as atomic_write,
)
from calibrant._files import (
    check_folder as check_folder,
)
from calibrant._files import (
    check_source as check_source,
)
from calibrant._files import (
    check_suffix as check_suffix,
)
from calibrant._files import (
    check_target as check_target,
)
from calibrant._files import (
    make_folder as make_folder,
)
from calibrant._files import (
    same_file as same_file,
)
from calibrant._files import (
    shown as shown,
)
from calibrant._files import (
    write_whole as write_whole,
)

WRITABLE_TABLES = (".parquet", ".arrow", ".feather", ".csv", ".tsv", ".jsonl", ".xlsx")
WRITABLE = (".npz", ".safetensors", ".pt", *WRITABLE_TABLES)
