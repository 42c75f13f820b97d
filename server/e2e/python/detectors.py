"""Eight detectors that behave like Frigate's, on sockets of libzmq.

    python detectors.py ENDPOINT PID

The process PID is killed when half of the images are answered. Prints the number of answers, of
wrong ones, and the longest time of one in seconds.
"""

import json
import os
import signal
import sys
import threading
import time

import numpy as np
import zmq

SIDE, IMAGES, DETECTORS = 64, 60, 8


class Detector:
    def __init__(self, context: zmq.Context, endpoint: str) -> None:
        self.socket = context.socket(zmq.REQ)
        for option in (zmq.RCVTIMEO, zmq.SNDTIMEO):
            self.socket.setsockopt(option, 30_000)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(endpoint)

    def about(self, name: str) -> dict:
        self.socket.send_multipart([json.dumps({"model_request": True, "model_name": name}).encode()])
        (answer,) = self.socket.recv_multipart()
        return json.loads(answer)

    def detect(self, image: np.ndarray) -> np.ndarray:
        header = {"shape": list(image.shape), "dtype": image.dtype.name, "model_type": "yologeneric"}
        self.socket.send_multipart([json.dumps(header).encode(), memoryview(image.tobytes())])
        head, rows = self.socket.recv_multipart()
        answer = json.loads(head)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return np.frombuffer(rows, np.dtype(answer["dtype"])).reshape(answer["shape"])


def expected(left: int, top: int, width: int, height: int) -> np.ndarray:
    rows = np.zeros((20, 6), "f4")
    rows[0] = width * height % 3, 0.75, top / SIDE, left / SIDE, (top + height) / SIDE, (left + width) / SIDE
    return rows


def main() -> None:
    context, wrong, times = zmq.Context(), [], []
    endpoint, pid = sys.argv[1], int(sys.argv[2])

    def run(number: int) -> None:
        detector = Detector(context, endpoint)
        status = detector.about("rectangles.onnx")
        if not (status["model_available"] and status["model_loaded"]):
            wrong.append(status)
            return
        random = np.random.default_rng(number)
        for i in range(IMAGES):
            if number == 0 and i == IMAGES // 2:
                os.kill(pid, signal.SIGKILL)
            left, top, width, height = (int(n) for n in random.integers(1, SIDE // 2, 4))
            image = np.zeros((1, SIDE, SIDE, 3), np.uint8)
            image[0, top : top + height, left : left + width] = 255
            began = time.monotonic()
            try:
                if not np.allclose(detector.detect(image), expected(left, top, width, height), atol=1e-6):
                    wrong.append([number, i])
            except (RuntimeError, zmq.ZMQError) as error:
                wrong.append(str(error))
                return
            times.append(time.monotonic() - began)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(DETECTORS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"answers": len(times), "wrong": wrong, "longest": max(times, default=0)}))


main()
