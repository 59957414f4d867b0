"""Text that holds a table: what tools print, the dialect of cells and numbers, the lines of names; in bounded memory."""

import codecs
import csv
import html
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant._core.files import MEND_LINE, pa, refuse_beyond_memory
from calibrant._core.paths import shown
from calibrant._core.warn import warn_user
from calibrant.data.formats.layout import COMPRESSED, TEXTS, suffix_of
from calibrant.data.formats.roles import called
from calibrant.errors import FileFormatError, UsageWarning, sentence

_HEAD = 1 << 18  # bytes from which the dialect is found: some hundred rows
_BLOCK = 64 << 20  # bytes from which the encoding is found
OBJECTS = 12  # bytes of Python objects per byte of JSON, as measured on rows of ten numbers
FASTTEXT = "__label__"  # before each label in its files
_HEADING = re.compile(r"(=+|-+) [^=]* \1")  # as Weka sets one
_WORD = re.compile(r'"[^"]*"|\S+')
_RULE = re.compile(r"(?=.*--)[\s|+:=,-]+")  # drawn below the names of a table
_BOXES = (
    {ord(one): "|" for one in "│┃║┆"}
    | {ord(one): "-" for one in "─━═╌"}
    | {ord(one): "+" for one in "┌┬┐├┼┤└┴┘╞╪╡╒╤╕╘╧╛"}
)
_ROLES = {"", "class", "meta", "ignore", "weight", "c", "m", "i", "w"}
_TYPE = re.compile(r"|continuous|discrete|string|time|[cdst]|\S+( \S+)+")
_NUMBER = re.compile(r"\*?[-+]?\d*[.,]?\d*(e[-+]?\d+)?", re.IGNORECASE)  # a star: Weka's mark of the decision
_DECIMAL = re.compile(r"[-+]?\d+\.\d*(e[-+]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Dialect:
    """How a text file writes its cells."""

    delimiter: str
    decimal: str = "."
    encoding: str = "utf-8"
    text: tuple[str, ...] = ()  # columns with numbers such as 007, which are names
    names: tuple[str, ...] = ()  # of the columns: those of the first line, made distinct, or of a file without a title
    titles: int = 1  # the lines that hold them: two of a table of pandas with two levels of columns
    above: int = 0  # lines above these: comments, or a heading
    quote: str = '"'


def opened(path: Path) -> Any:
    """Return a file as Arrow's stream of bytes, decompressed as its name says; what a tool printed as text with commas."""
    printed = printed_by_tools(path)
    return pa.BufferReader(printed) if printed else unpacked(path)


def unpacked(path: Path) -> Any:
    """Return a file as Arrow's stream of bytes, decompressed as its name says."""
    file = pa.OSFile(str(path))
    codec = COMPRESSED.get(path.suffix.lower())
    return file if codec is None else pa.CompressedInputStream(file, codec)


def content_of(path: Path, *, growth: int = 1) -> bytearray:
    """Return the bytes of a file, decompressed, in memory that is bounded whatever a small file unpacks to.

    Args:
        path: The file.
        growth: Bytes of memory that a byte of it takes in the end.

    Raises:
        FileFormatError: If that is more than half of the memory.
    """
    content = bytearray()  # which grows where it is; parts that are joined take twice as much
    with unpacked(path) as file:
        while part := file.read(16 << 20):
            content += part
            refuse_beyond_memory(len(content) * growth, path)
    return content


def printed_by_tools(path: Path, *, lines: int | None = None) -> bytes:
    """Return what a tool printed as text with commas; nothing of other files, and of such as are not cut into columns after all.

    Args:
        path: The file.
        lines: How many of its first lines count; None for all.
    """
    if suffix_of(path) not in TEXTS:
        return b""
    with unpacked(path) as file:
        head = file.read(1 << 12).decode(errors="replace").translate(_BOXES)
    rows_of = next((rows_of for begins, rows_of in _PRINTED if begins(head)), None)
    if rows_of is None:
        return b""
    content = io.BytesIO()
    out = io.TextIOWrapper(content, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(out)
    with unpacked(path) as file:
        rows = iter(rows_of(itertools.islice(_lines_of(file, path), lines), path))
        title, first = next(rows, []), next(rows, [])
        width = len(first or title)
        if width < 2 or len(title) not in (width, width - 1):
            return b""
        for row in itertools.chain([title, first] if first else [title], rows):
            if row is not title and len(row) != width:
                if lines and next(rows, None) is None:  # cut off by the number of lines
                    break
                return b""
            writer.writerow([cell.strip('"') for cell in row])
    return content.getvalue()


def _lines_of(file: Any, path: Path) -> Iterator[str]:
    """Yield the lines of a stream that are not empty, boxes drawn with plain signs; in memory that is bounded by the text's."""
    # as text with commas, as bytes of it, and as columns
    for line in _counted(io.TextIOWrapper(file, encoding=encoding_of(path), errors="replace"), path, growth=4):
        if line.strip():
            yield line.translate(_BOXES).rstrip("\r\n")


def _counted(lines: Iterable[str], path: Path, *, growth: int) -> Iterator[str]:
    """Yield lines, and refuse those of which ``growth`` bytes for each sign are beyond the memory."""
    size = new = 0
    for line in lines:
        new += len(line)
        if new > 1 << 20:  # to ask for every line takes longer than to read it
            size, new = size + new, 0
            refuse_beyond_memory(growth * size, path)
        yield line


def _words(lines: Iterable[str]) -> Iterator[list[str]]:
    return (_WORD.findall(line) for line in lines)


def _of_fasttext(lines: Iterable[str], path: Path) -> Iterable[list[str]]:
    rows = list(_words(list(_counted(lines, path, growth=OBJECTS))))
    true = int(all(len(row) % 2 for row in rows))  # the true label before the pairs, as a file of labels is pasted
    cells = [dict(zip(row[true::2], row[true + 1 :: 2], strict=True)) for row in rows]
    names = sorted({name for row in cells for name in row})
    refuse_beyond_memory(16 * len(cells) * len(names), path)
    return [
        [f"prob_{name.removeprefix(FASTTEXT)}" for name in names] + ["label"] * true,
        *(
            [one.get(n, "") for n in names] + [row[0].removeprefix(FASTTEXT)] * true
            for row, one in zip(rows, cells, strict=True)
        ),
    ]


def _of_libsvm(lines: Iterable[str], path: Path) -> Iterable[list[str]]:
    title, *rows = _words(list(_counted(lines, path, growth=OBJECTS)))
    if not all(re.fullmatch("-?[0-9]+", row[0]) for row in rows):
        return [title, *rows]  # the title of a table of other rows
    return [["pred", *(f"prob_{name}" for name in title[1:])], *rows]


def _of_drawn(lines: Iterable[str], path: Path) -> Iterable[list[str]]:
    whole = (line.strip() for line in lines if not _RULE.fullmatch(line) and not re.fullmatch(r"\(?\d+ rows?.*", line))
    first = next(whole, "")
    sign = next((one for one in "|,;\t" if one in first), "")
    kept = itertools.chain([first], whole)
    inner = (line[1:-1] if line[0] == line[-1] == "|" else line for line in kept if line)
    return ([cell.strip() for cell in row] for row in csv.reader(inner, delimiter=sign)) if sign else _words(inner)


def _of_html(lines: Iterable[str], path: Path) -> Iterable[list[str]]:
    whole = "\n".join(_counted(lines, path, growth=OBJECTS))
    cells = [re.split(r"(?i)<t[dh]\b[^<>]{0,200}>", row)[1:] for row in re.split(r"(?i)<tr\b", whole)]
    return [[html.unescape(one.partition("</")[0]).strip() for one in row] for row in cells if row]


def _of_arff(lines: Iterable[str], path: Path) -> Iterable[list[str]]:
    lines = list(_counted(lines, path, growth=OBJECTS))
    named = (re.match(r"(?i)@attribute +('[^']*'|\"[^\"]*\"|\S+)", line) for line in lines)
    data = (line for line in lines if line[0] not in "@%")
    rows = csv.reader(data, quotechar="'", skipinitialspace=True)
    return [
        [one[1].strip("'\"") for one in named if one],
        *(["" if one == "?" else one for one in row] for row in rows),
    ]


def _of_aligned(lines: Iterable[str], path: Path) -> Iterator[list[str]]:
    kept = (line for line in lines if not _HEADING.fullmatch(line.strip()))
    title = list(re.finditer(_WORD, next(kept, "")))
    middles = [one.start() + one.end() for one in title]
    yield [one[0] for one in title]
    for line in kept:
        words = list(re.finditer(_WORD, line))
        row = [one[0] for one in words]
        if len(words) < len(title):  # a cell is empty: each word stands below the nearest name
            at = [min(range(len(middles)), key=lambda k: abs(middles[k] - sum(one.span()))) for one in words]
            row = [row[at.index(k)] if k in at else "" for k in range(len(middles))] if len({*at}) == len(at) else row
        yield row


def _aligned(head: str) -> bool:
    first = [line for line in head.splitlines() if line.strip() and not _HEADING.fullmatch(line.strip())][:3]
    return bool(first) and all(re.search(r"\S {2,}\S", one) and not re.search("[,;\t|]", one) for one in first)


# What a head of a file says, and what then makes rows of its lines; the first that fits counts.
_PRINTED: tuple[tuple[Callable[[str], Any], Callable[[Iterable[str], Path], Iterable[list[str]]]], ...] = (
    # fastText's predict-prob prints each label before its probability
    (lambda head: head.startswith(FASTTEXT), _of_fasttext),
    # psql, MySQL and Markdown draw a line below the names
    (lambda head: any(map(_RULE.fullmatch, head.splitlines()[:3])), _of_drawn),
    (lambda head: head.lstrip()[:6].lower() in ("<table", "<html>", "<!doct"), _of_html),
    (lambda head: head.lower().startswith(("@relation", "%")) and "@attribute" in head.lower(), _of_arff),
    # LIBSVM's svm-predict -b 1 prints "labels 2 1 3", then the decision and the probabilities in that order
    (lambda head: head.startswith("labels "), _of_libsvm),
    (_aligned, _of_aligned),
)


def encoding_of(path: Path) -> str:
    """Return the encoding of text as its first block shows: UTF-8 or UTF-16, and for any other, with a warning, Windows-1252.

    That has one sign for a byte, as most old encodings have: numbers are right, and names distinct, whatever it was.

    Raises:
        FileFormatError: If it is no text.
    """
    decoder, size = codecs.getincrementaldecoder("utf-8")(), 0
    with unpacked(path) as file:
        part = file.read(1 << 12)
        if part.startswith((b"\xff\xfe", b"\xfe\xff")):
            return "utf-16"
        try:
            while part and size < _BLOCK:
                decoder.decode(part)
                size, part = size + len(part), file.read(1 << 20)
            return "utf-8"
        except UnicodeDecodeError as error:
            if re.search(rb"[\x00-\x08\x0e-\x1f]", part):
                remedy = "convert it, as by iconv -f UTF-16LE -t UTF-8"
                raise FileFormatError("text in UTF-8", f"another encoding in {shown(path)}", remedy) from error
    got = f"other bytes in {shown(path)}, read as Windows-1252"
    warn_user(
        sentence("text in UTF-8", got, "if names look wrong, convert it by iconv -f ENCODING -t UTF-8"), UsageWarning
    )
    return "latin-1" if re.search(rb"[\x81\x8d\x8f\x90\x9d]", part) else "cp1252"


def dialect_of(path: Path) -> Dialect:
    """Return how a text file separates its columns and writes its numbers, as its first rows show.

    Raises:
        FileFormatError: If it is no text, or its first line holds numbers instead of names.
    """
    printed = printed_by_tools(path, lines=400)  # of such text the first rows are enough
    with unpacked(path) as file:
        head = printed[:_HEAD] or file.read(_HEAD)
    encoding = "utf-8" if printed else encoding_of(path)
    # Up to the last whole line, since the head may end within a character or a cell. In UTF-16 a line's end is two
    # bytes, of which this finds one: the cut is made even, and what it breaks is replaced.
    lines = head[: head.rfind(b"\n") + 1] or head
    text = lines[: len(lines) // 2 * 2].decode(encoding, "replace") if encoding == "utf-16" else lines.decode(encoding)
    usual = "\t" if suffix_of(path) == ".tsv" else ","
    if re.search(rb"[^,;\t|\n]{%d}" % csv.field_size_limit(), head):
        wide = "close its quotes and end its lines; lists of so many classes are read from .parquet or .jsonl"
        most = f"cells of at most {csv.field_size_limit() >> 10} KiB in the first lines"
        raise FileFormatError(most, f"a longer one in {shown(path)}", wide)
    quote = "'" if re.match(r"\ufeff?'[^'\n]*'\s*[,;\t|]\s*'", text) else '"'
    signs = dict.fromkeys((usual, ",", ";", "\t", "|"))
    tried = [_Cut.of(text, sign, quote) for sign in signs]
    cuts = [one for one in tried if one.even]
    words = _Cut.of(text, " ", quote)  # numpy.savetxt's, R's write.table
    if words.even and not any(one.width > 1 for one in cuts):
        cuts += [words] if all(any(map(_DECIMAL.fullmatch, row)) for row in words.rows[1:]) else []
    # the sign that cuts every row into equally many cells, below the fewest lines of heading, and into the most; the usual one
    # comes first and wins ties
    best = max(cuts, key=lambda one: (one.width > 1, -one.dropped, one.width), default=_Cut(usual, [], 0, 0, []))
    if not best.rows or best.width == 1:
        for one in tried:
            one.check_whole(path)
    rows = best.rows
    names, titles = titles_of(rows) if rows else ([], 1)
    if not titles:  # as a spreadsheet calls them, since numbers would be taken for those of classes
        names = [f"column{_letters(at)}" for at in range(len(rows[0]))]
    rows = [names, *rows[titles:]] if rows else rows
    cells = [cell for row in rows[1:] for cell in row]
    # "0,9" is a number only where commas do not part the columns but for quoted cells, and no cell has a point for it
    commas = any(re.fullmatch(r"-?\d+,\d+(e-?\d+)?", cell, re.IGNORECASE) for cell in cells)
    commas = commas and (best.sign != "," or any(re.match(r"-?0,\d", cell) for cell in cells))
    points = any(re.fullmatch(r"-?\d+\.\d+", cell) for cell in cells)
    coded = [name for name, *column in zip(*rows, strict=True) if any(re.fullmatch(r"0\d+", one) for one in column)]
    decimal = "," if commas and not points else "."
    return Dialect(best.sign, decimal, encoding, tuple(coded), tuple(names), titles, best.above, quote)


@dataclass(frozen=True)
class _Cut:
    """The first rows of a text, cut at a sign, below ``dropped`` rows of heading, which are ``above`` lines; and where each ends."""

    sign: str
    rows: list[list[str]]
    dropped: int
    above: int
    lines: list[int]

    @classmethod
    def of(cls, text: str, sign: str, quote: str) -> "_Cut":
        reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), delimiter=sign, quotechar=quote)
        numbered = list(itertools.islice(((row, reader.line_num) for row in reader if row), 200))
        rows = [row for row, _ in numbered]
        dropped = headings(rows)
        above = numbered[dropped][1] - 1 if dropped else 0
        return cls(sign, _whole_title(rows[dropped:]), dropped, above, [line for _, line in numbered[dropped:]])

    @property
    def width(self) -> int:
        return len(self.rows[0])

    @property
    def even(self) -> bool:
        return len({len(row) for row in self.rows}) == 1

    def check_whole(self, path: Path) -> None:
        """Refuse rows of which most are as wide as the title, and one is not: it was cut off, or a cell holds the sign."""
        odd = [at for at, row in enumerate(self.rows) if len(row) != self.width] if self.rows else []
        if odd and self.width > 1 and 2 * len(odd) < len(self.rows):
            got = f"{len(self.rows[odd[0]])} in line {self.lines[odd[0]]}"
            raise FileFormatError(f"{self.width} cells in each line of {shown(path)}", got, MEND_LINE)


def _whole_title(rows: list[list[str]]) -> list[list[str]]:
    """Return rows with a name for each column: R leaves that of the rows' names out, Weka those of a distribution after the first."""
    width = len(rows[-1]) if len(rows) > 1 else 0
    gap = width - len(rows[0]) if rows and len(rows[0]) > 1 and all(len(row) == width for row in rows[1:]) else 0
    if gap < 1:
        return rows
    end = [cell for row in rows[1:] for cell in row[-gap - 1 :]]
    if any(cell.startswith("*") for cell in end) or not any(row[-1] for row in rows[1:]):
        return [rows[0] + [""] * gap, *rows[1:]]
    return [["", *rows[0]], *rows[1:]] if gap == 1 else rows


def headings(rows: Sequence[Sequence[Any]]) -> int:
    """Return how many first rows say something of a table instead of naming its columns.

    These have one cell, or are a comment, or stand above a row of distinct names that is followed by numbers; of two levels of
    names the upper one says what those below are.
    """
    texts = [[str("" if cell is None else cell).strip() for cell in row] for row in rows]
    width = max(map(len, texts[-3:]), default=0)

    def speaks(row: Sequence[str]) -> bool:
        # a table of two columns may leave the name of its index empty, and R leaves that name out
        filled = [*filter(None, row)]
        return width > 2 and (len(filled) < 2 or (len(row) != width and filled[0].startswith("#")))

    def is_title(row: Sequence[str]) -> bool:
        return len({*row}) == len(row) == width and all(row[1:]) and not any(map(_NUMBER.fullmatch, filter(None, row)))

    first = (
        at
        for at, row in enumerate(texts)
        if 2 * len([*filter(None, row)]) > width and any(map(_DECIMAL.fullmatch, row))
    )
    title = next(first, 0) - 1
    if title > 0 and is_title(texts[title]):
        above = [*filter(None, texts[title - 1])]
        two = len(texts[title - 1]) == width and len(above) > 1
        return title - (two and any(called(one, "event", "logits", "truth", "confidence") for one in above))
    return len(list(itertools.takewhile(speaks, texts)))


def distinct(names: Sequence[str]) -> list[str]:
    """Return names of which a later one of two gets a number, note and note (2); the rest as they are."""
    found: dict[str, None] = {}
    for name in names:
        numbered = (f"{name} ({count})" for count in itertools.count(2))
        found[name if name not in found else next(one for one in numbered if one not in found and one not in names)] = (
            None
        )
    return list(found)


def csv_reader(path: Path, *, block: int) -> Any:
    dialect = dialect_of(path)
    return pa.csv.open_csv(
        opened(path),
        pa.csv.ReadOptions(
            block_size=block,
            encoding=dialect.encoding,
            skip_rows=dialect.above,
            column_names=dialect.names or None,
            # with names given Arrow takes the first line for rows
            skip_rows_after_names=dialect.titles if dialect.names else 0,
        ),
        # texts beside the scores hold line breaks within quotes; Arrow takes these for ends of rows unless told
        pa.csv.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=True, quote_char=dialect.quote),
        pa.csv.ConvertOptions(decimal_point=dialect.decimal, column_types={name: pa.string() for name in dialect.text}),
    )


def titles_of(rows: Sequence[Sequence[str]]) -> tuple[list[str], int]:
    """Return the names that the first lines hold, made distinct, and how many lines these are.

    Two levels of columns are one name each, and so is what stands in a merged cell with what is below it. A title above columns of
    numbers without one is theirs, too: ``1#distribution, 2#distribution`` …, which say no kind.
    """
    titles = _titles(rows)
    if titles == 3 and {*rows[2]} <= _ROLES:
        return distinct(rows[0]), titles
    if titles < 2:
        first = [word.strip() for word in rows[0]]
        below = rows[1] if len(rows) > 1 else [""] * len(first)
        for at in range(len(first) - 1, 0, -1):
            end = next((k for k in range(at, len(first)) if first[k]), len(first))
            numbers = all(cell.strip() and _NUMBER.fullmatch(cell.strip()) for cell in below[at - 1 : end])
            if first[at - 1] and not first[at] and numbers:
                first[at - 1 : end] = [f"{k + 1}#{first[at - 1]}" for k in range(end - at + 1)]
        return distinct([new if new != old.strip() else old for old, new in zip(rows[0], first, strict=True)]), titles
    upper = list(rows[0])
    for at in range(1, len(upper)):  # what is merged stands in its first cell
        upper[at] = upper[at] or (upper[at - 1] if rows[1][at] and rows[1][at - 1] else "")
    names = ["_".join(dict.fromkeys(filter(None, parts))) for parts in zip(upper, *rows[1:titles], strict=True)]
    return distinct(names), titles


def _titles(rows: Sequence[Sequence[str]]) -> int:
    """Return how many first lines hold names: none where the first holds numbers with decimals, or one number twice."""
    words = [word.strip() for word in rows[0]]
    if len(rows) > 3 and any(rows[2]) and {*rows[2]} <= _ROLES and all(map(_TYPE.fullmatch, rows[1])):
        return 3  # Orange's: the type of each column, or its values, and what it is for
    if all(map(_NUMBER.fullmatch, words)) and any(words):  # 0, 1, 2 are names
        values = {
            word.replace(",", ".").rstrip("0").rstrip(".") if "." in word or "," in word else word for word in words
        }
        decimals = sum("." in word or "," in word for word in words)
        return int(len(values) == len(words) and decimals < min(2, len(words)))
    # names of classes, one a line, without a title: text that stands below again; not the title of a file glued to this one
    if rows[0] in rows[1:] and len(words) > 1:
        return 1
    if all(word in {row[at].strip() for row in rows[1:]} or _NUMBER.fullmatch(word) for at, word in enumerate(words)):
        return 0
    if len(rows) < 3 or len({*words}) == len(words):
        return 1
    # pandas writes the name of an index in a line of its own, with nothing beside it
    named = 2 + (len(rows) > 3 and len(words) > 2 and bool(rows[2][0].strip()) and not any(rows[2][1:]))
    under = [(second.strip(), third.strip()) for second, third in zip(rows[1], rows[named], strict=True)]
    text = not any(second and _NUMBER.fullmatch(second) for second, _ in under)
    numbers = sum(bool(second and third and _NUMBER.fullmatch(third)) for second, third in under)
    return named if text and numbers > 1 else 1


def _letters(at: int) -> str:
    """Return the letters of a spreadsheet's column: A … Z, AA …."""
    return (_letters(at // 26 - 1) if at >= 26 else "") + chr(ord("A") + at % 26)
