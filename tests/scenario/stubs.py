"""Stubs made from proto/ as any user makes them: control_pb2, control_pb2_grpc, job_pb2, workers_pb2, workers_pb2_grpc."""
import os
import subprocess
import sys
import tempfile

import harness

PROTO = os.path.join(harness.ROOT, "proto")
directory = tempfile.TemporaryDirectory(prefix="gacc-stubs-")
subprocess.run(["protoc", "-I", PROTO, f"--python_out={directory.name}", f"--grpc_out={directory.name}",
                "--plugin=protoc-gen-grpc=/usr/bin/grpc_python_plugin",
                *(os.path.join(PROTO, "gacc/v1", name) for name in ("job.proto", "workers.proto", "control.proto"))], check=True)
sys.path.insert(0, directory.name)
from gacc.v1 import control_pb2, control_pb2_grpc, job_pb2, workers_pb2, workers_pb2_grpc  # noqa: E402, F401
