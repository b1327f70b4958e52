"""The operators' address speaks HTTP/1.1, too: /healthz, /api/status and /metrics."""
import json
import socket
import sys
import time

import harness
import http_client


class Http(harness.Endless):
    def begin(self, **sections):
        job, text = harness.tape(steps=10**9, **sections)
        self.write("tape.csv", text)
        self.job = self.start(job).until_step(5)
        self.connection = self.job.connection()
        return self.connection["endpoint"]

    def test_status_is_that_of_get_status_in_protobufs_json(self):
        endpoint = self.begin()
        code, headers, body = http_client.get(endpoint, "/api/status")
        self.assertEqual((code, headers["Content-Type"]), (200, "application/json"))
        status = json.loads(body)
        self.assertEqual((status["job"], status["phase"], status["pid"]), ("tape", "training", self.connection["pid"]))
        self.assertGreaterEqual(int(status["optimizerSteps"]), 4)
        self.assertEqual(status["totalSteps"], str(10**9))
        self.assertEqual([rank["rank"] for rank in status["ranks"]], [0, 1])
        self.assertTrue(status["ranks"][0]["state"].startswith("STATE_"))
        self.assertEqual(status["last"][-1]["verdict"], "VERDICT_APPLY")
        self.assertIs(status["hasScaler"], False)
        self.assertEqual(http_client.get(endpoint, "/healthz")[::2], (200, "ok\n"))

    def test_metrics_are_prometheus_text(self):
        endpoint = self.begin(checkpoint={"every": 2})
        harness.until(lambda: http_client.status(endpoint)["checkpoint"], 20, "a checkpoint")
        code, headers, body = http_client.get(endpoint, "/metrics")
        self.assertEqual((code, headers["Content-Type"]), (200, "text/plain; version=0.0.4; charset=utf-8"))
        metrics = http_client.parse_metrics(body)
        self.assertEqual({name.split("_")[0] for name in metrics}, {"gacc"})
        value = {name: list(metric["values"].values()) for name, metric in metrics.items()}
        self.assertEqual(set(metrics["gacc_steps_total"]["values"]), {(("verdict", v),) for v in ("apply", "skip", "empty")})
        self.assertEqual(metrics["gacc_steps_total"]["type"], "counter")
        self.assertGreater(value["gacc_steps_total"][0], 3)
        self.assertEqual(value["gacc_learning_rate"], [0.1])
        self.assertEqual(value["gacc_loss_scale"], [])  # fp32 has none
        self.assertEqual(value["gacc_ranks"], [2])
        self.assertEqual(len(value["gacc_rank_step_seconds"]), 2)
        self.assertEqual(len(value["gacc_rank_state"]), 2)
        self.assertGreaterEqual(value["gacc_checkpoint_age_seconds"][0], 0)
        self.assertLess(value["gacc_checkpoint_age_seconds"][0], 60)
        self.assertGreater(value["gacc_tokens_total"][0], 0)

    def test_what_is_not_there_and_what_is_no_get(self):
        endpoint = self.begin()
        for path in ("/", "/metrics/", "/events", "/api", "/api/status/x", "//metrics", "/healthz%20"):
            self.assertEqual(http_client.get(endpoint, path)[0], 404, path)
        code, headers, _ = http_client.get(endpoint, "/metrics", verb="POST")
        self.assertEqual((code, headers["Allow"]), (405, "GET, HEAD"))
        code, headers, body = http_client.get(endpoint, "/metrics?format=x", verb="HEAD")
        self.assertEqual((code, body), (200, ""))
        self.assertGreater(int(headers["Content-Length"]), 1000)

    def test_one_connection_takes_many_requests(self):
        connection = http_client.connect(self.begin())
        for _ in range(50):
            connection.request("GET", "/healthz")
            self.assertEqual(connection.getresponse().read(), b"ok\n")
        socket_before = connection.sock
        connection.request("GET", "/api/status")
        self.assertEqual(connection.getresponse().status, 200)
        self.assertIs(connection.sock, socket_before)
        connection.close()

    def test_a_token_is_wanted_over_tcp(self):
        endpoint = self.begin(control={"listen": "tcp://127.0.0.1:0"})
        token = self.connection["token"]
        for path in ("/healthz", "/metrics", "/api/status", "/nothing"):
            for given in ({}, {"Authorization": f"Bearer {token[:-1]}x"}, {"Authorization": token}):
                code, headers, body = http_client.get(endpoint, path, **given)
                self.assertEqual((code, headers["WWW-Authenticate"]), (401, "Bearer"))
                self.assertNotIn(token, body)
            self.assertEqual(http_client.get(endpoint, path, Authorization=f"Bearer {token}")[0],
                             404 if path == "/nothing" else 200)

    def test_a_head_that_comes_too_slowly_ends_with_408(self):
        endpoint = self.begin()
        slow = socket.socket(socket.AF_UNIX)
        slow.settimeout(30)
        slow.connect(endpoint[5:])
        slow.sendall(b"GET /healthz HTTP/1.1\r\n")
        began, answer = time.monotonic(), b""
        slow.setblocking(False)
        while not answer and time.monotonic() - began < 30:
            time.sleep(0.5)
            try:
                answer = slow.recv(4096)
            except BlockingIOError:
                slow.send(b"a")  # one byte at a time does not help
        self.assertTrue(answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n"), answer)
        self.assertGreater(time.monotonic() - began, 9)
        slow.close()


if __name__ == "__main__":
    harness.main()
