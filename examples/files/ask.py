"""Ask the pipeline for the dots of a picture, from the left, and what it says of each."""

import sys

import numpy as np
from marks import NAMES
from shiva_client import Client

with Client(sys.argv[1]) as client:
    answer = client.infer("signals", {"image": np.fromfile(sys.argv[2], np.uint8)})
dots = [
    (answer["find.boxes"][dot][0], answer["find.labels"][dot], NAMES[int(scores.argmax())])
    for dot, scores in zip(answer["look.of"], answer["look.scores"], strict=True)
]
for _, colour, kind in sorted(dots):
    print(colour, kind)
