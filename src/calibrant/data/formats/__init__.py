"""Every file format people have, read as the named arrays that ``calibrant.data.splits`` makes predictions of, and written.

``layout`` says what the user knows about a file; ``tensors`` and ``tables`` open files; ``columns`` finds the classes among
the columns of a table; ``labels`` matches text to classes; ``reading`` and ``writing`` join them.
"""
