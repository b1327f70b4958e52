"""gRPC stubs of gacc.v1, generated from proto/ for this process; and a Control service that answers as a test says."""
import concurrent.futures
import os
import subprocess
import sys
import tempfile

import grpc

import harness

PROTO = os.path.join(harness.ROOT, "proto")
directory = tempfile.TemporaryDirectory(prefix="gacc-stubs-")
subprocess.run(["protoc", "-I", PROTO, f"--python_out={directory.name}", f"--grpc_out={directory.name}",
                "--plugin=protoc-gen-grpc=/usr/bin/grpc_python_plugin",
                *(os.path.join(PROTO, "gacc/v1", name) for name in ("job.proto", "workers.proto", "control.proto"))], check=True)
sys.path.insert(0, directory.name)
from gacc.v1 import control_pb2, control_pb2_grpc  # noqa: E402


class Fake(control_pb2_grpc.ControlServicer):
    """`answers`: by method, a message, a list of them (a stream), a function that gives either, or a gRPC status code and text; `asked`: what came."""

    def __init__(self, health=None, port=0, **answers):
        self.answers, self.asked = answers, []
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        control_pb2_grpc.add_ControlServicer_to_server(self, self.server)
        if health is not None:  # grpc.health.v1: one field of a number
            handler = grpc.unary_unary_rpc_method_handler(lambda request, context: health)
            self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": handler}),))
        self.port = self.server.add_insecure_port(f"127.0.0.1:{port}")
        self.server.start()

    def answer(self, method, request, context):
        self.asked.append((method, request))
        answer = self.answers[method]
        if isinstance(answer, tuple):
            context.abort(*answer)
        return answer() if callable(answer) else answer


def unary(method):
    return lambda self, request, context: self.answer(method, request, context)


for name in ("GetStatus", "Pause", "Resume", "Checkpoint", "Stop", "SetParameters", "GetConfig"):
    setattr(Fake, name, unary(name))


def watch_steps(self, request, context):
    yield from self.answer("WatchSteps", request, context)


Fake.WatchSteps = watch_steps
