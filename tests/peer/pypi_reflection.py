"""Today's grpcio with grpcio-reflection and grpcio-health-checking: clients that know nothing of our .proto files list the services,
read their messages and call them. And the Prometheus client reads our metrics."""
import environment

environment.enter(*environment.GRPC)

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import harness
import http_client

SERVICES = ["gacc.v1.Control", "gacc.v1.Workers", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection"]


class Reflection(harness.Scenario):
    def channel(self, **sections):
        job, text = harness.gpt(steps=10**9, **sections)
        self.write("text.txt", text)
        self.job = self.start(job).until_step(2)
        channel = grpc.insecure_channel(self.job.connection()["endpoint"])
        self.addCleanup(channel.close)
        return channel

    def stop(self):
        for pid in self.job.ranks().values():
            harness.os.kill(pid, harness.signal.SIGKILL)
        self.job.wait(20)

    def test_everything_is_listed_described_and_called_without_our_files(self):
        channel = self.channel()
        database = ProtoReflectionDescriptorDatabase(channel)
        self.assertEqual(sorted(database.get_services()), SERVICES)
        pool = DescriptorPool(database)
        called = 0
        for service in map(pool.FindServiceByName, SERVICES):
            for method in service.methods:
                call = channel.stream_stream(f"/{service.full_name}/{method.name}",
                                             request_serializer=lambda message: message.SerializeToString(),
                                             response_deserializer=GetMessageClass(method.output_type).FromString)
                codes = (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAUTHENTICATED,
                         grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)
                if method.name in ("Stop", "Pause", "Checkpoint"):
                    continue  # they do it
                answers = call(iter([GetMessageClass(method.input_type)()]), timeout=1)
                try:
                    list(answers)
                except grpc.RpcError:
                    pass
                offered = answers.code() is not grpc.StatusCode.UNIMPLEMENTED
                self.assertTrue(answers.code() in codes if offered else "unknown method" in answers.details(),
                                (method.full_name, answers.code(), answers.details()))
                called += offered
        self.assertGreaterEqual(called, 7)
        status = channel.unary_unary("/gacc.v1.Control/GetStatus", request_serializer=bytes,
                                     response_deserializer=GetMessageClass(pool.FindMessageTypeByName("gacc.v1.Status")).FromString)
        self.assertEqual(status(b"").job, "gpt")
        self.stop()

    def test_health(self):
        stub = health_pb2_grpc.HealthStub(self.channel())
        for service in ("", "gacc.v1.Control", "gacc.v1.Workers"):
            self.assertEqual(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status,
                             health_pb2.HealthCheckResponse.SERVING)
        with self.assertRaises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(service="gacc.v1"), timeout=10)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)
        unknown = stub.Watch(health_pb2.HealthCheckRequest(service="gacc.v1"), timeout=60)
        self.assertEqual(next(unknown).status, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
        self.assertEqual(next(watch).status, health_pb2.HealthCheckResponse.SERVING)
        harness.os.kill(self.job.ranks()[1], harness.signal.SIGTERM)  # stops in order, behind a checkpoint
        self.assertIn(health_pb2.HealthCheckResponse.NOT_SERVING, [answer.status for answer in watch])
        self.assertEqual(list(unknown), [])
        self.job.wait(20)

    def test_metrics(self):
        self.channel()
        families = list(text_string_to_metric_families(http_client.get(self.job.connection()["endpoint"], "/metrics")[2]))
        self.assertGreater(len(families), 20)
        self.assertEqual({family.name.split("_")[0] for family in families}, {"gacc"})
        applied = [sample for family in families for sample in family.samples
                   if sample.name == "gacc_steps_total" and sample.labels["verdict"] == "apply"]
        self.assertGreaterEqual(applied[0].value, 2)
        self.stop()


if __name__ == "__main__":
    harness.main()
