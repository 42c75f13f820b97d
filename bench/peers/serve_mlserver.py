"""MLServer with models that are the identity.

    serve_mlserver.py REST_PORT GRPC_PORT NAME:DATATYPE:SHAPE ...
"""

import asyncio
import sys

from mlserver import MLModel, MLServer
from mlserver.codecs import NumpyCodec
from mlserver.settings import ModelSettings, Settings
from mlserver.types import InferenceRequest, InferenceResponse


class Identity(MLModel):
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        x = NumpyCodec.decode_input(payload.inputs[0])
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("x", x)])


async def main() -> None:
    settings = Settings(
        host="127.0.0.1",
        http_port=int(sys.argv[1]),
        grpc_port=int(sys.argv[2]),
        metrics_endpoint=None,
        debug=False,
        parallel_workers=0,
        grpc_max_message_length=64 << 20,
    )
    server = MLServer(settings)
    await server.start(
        [ModelSettings(name=name, implementation=Identity) for name in (text.split(":")[0] for text in sys.argv[3:])]
    )


if __name__ == "__main__":
    asyncio.run(main())
