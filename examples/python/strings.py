"""Text in, text out, a row at a time: titles to what can stand in a URL.

pip install ./containers/python
python examples/python/strings.py
"""

import re
import unicodedata

from shiva_container import Request, Tensor, model, serve


@model(
    name="slug",
    version="1",
    inputs=[Tensor("title", "BYTES", [-1])],
    outputs=[Tensor("slug", "BYTES", [-1])],
    per_row=True,
)
def slug(title: bytes, request: Request) -> str:
    plain = unicodedata.normalize("NFKD", title.decode()).encode("ascii", "ignore").decode().lower()
    words = re.findall("[a-z0-9]+", plain)
    if not words:
        raise ValueError("the title has no letter or digit")
    return str(request.parameters.get("separator", "-")).join(words)


if __name__ == "__main__":
    serve()
