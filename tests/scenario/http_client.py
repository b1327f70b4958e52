"""HTTP/1.1 over the coordinator's unix socket or TCP, with Python's http.client."""
import http.client
import json
import socket


class Unix(http.client.HTTPConnection):
    def __init__(self, path, timeout=20):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def connect(endpoint, tls=None):
    if endpoint.startswith("unix:"):
        return Unix(endpoint[5:])
    return http.client.HTTPSConnection(endpoint, timeout=20, context=tls) if tls else http.client.HTTPConnection(endpoint, timeout=20)


def get(endpoint, path, verb="GET", tls=None, **headers):
    """(status, headers, body) of one request on a connection of its own; tls: an ssl.SSLContext."""
    connection = connect(endpoint, tls)
    try:
        connection.request(verb, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def status(endpoint, **headers):
    return json.loads(get(endpoint, "/api/status", **headers)[2])


def parse_metrics(text):
    """{name: {"type", "values": {labels: value}}}, or ValueError: Prometheus' text format, strictly."""
    metrics, current = {}, None
    if not text.endswith("\n"):
        raise ValueError("the last line has no end")
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            current = line.split(" ", 3)[2]
            if current in metrics:
                raise ValueError(f"{current} twice")
            metrics[current] = {"help": line.split(" ", 3)[3], "type": None, "values": {}}
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            if name != current or kind not in ("gauge", "counter") or metrics[name]["type"]:
                raise ValueError(line)
            metrics[name]["type"] = kind
        else:
            name, labels, value = split_sample(line)
            if name != current or not metrics[name]["type"] or labels in metrics[name]["values"]:
                raise ValueError(line)
            metrics[name]["values"][labels] = float(value)
    return metrics


def split_sample(line):
    name = line[: min(line.index(c) for c in "{ " if c in line)]
    if not name.replace("_", "a").isalnum() or name[0].isdigit():
        raise ValueError(line)
    rest, labels = line[len(name):], []
    if rest.startswith("{"):
        rest = rest[1:]
        while not rest.startswith("}"):
            key, rest = rest.split('="', 1)
            value = ""
            while rest[0] != '"':
                take = 2 if rest[0] == "\\" else 1
                if take == 2 and rest[1] not in '\\"n':
                    raise ValueError(line)
                value, rest = value + {"\\n": "\n"}.get(rest[:take], rest[take - 1]), rest[take:]
            labels.append((key, value))
            rest = rest[1:].removeprefix(",")
        rest = rest[1:]
    if not rest.startswith(" ") or " " in rest[1:]:
        raise ValueError(line)
    return name, tuple(labels), rest[1:]
