"""HTTP/2 by hand, for what no client library would send: frames, header blocks without compression, and sockets to a job's addresses."""
import socket
import ssl
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE = 4
WINDOW_MAX = 2**31 - 1


def frame(kind, flags=0, stream=0, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def integer(value, bits):
    """RFC 7541, 5.1."""
    limit = (1 << bits) - 1
    if value < limit:
        return bytes([value])
    text, value = bytes([limit]), value - limit
    while value >= 128:
        text, value = text + bytes([value % 128 + 128]), value // 128
    return text + bytes([value])


def field(name, value):
    """Never indexed, no Huffman code."""
    name, value = (text if isinstance(text, bytes) else text.encode() for text in (name, value))
    return b"\x10" + integer(len(name), 7) + name + integer(len(value), 7) + value


def request(path, *more):
    """The header block of a gRPC call."""
    fields = ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"), ("te", "trailers"),
              ("content-type", "application/grpc"), *more)
    return b"".join(field(*each) for each in fields)


def message(body=b"", length=None):
    """gRPC's frame, with a length that may be a lie."""
    return b"\0" + struct.pack(">I", len(body) if length is None else length) + body


def settings(*pairs):
    return frame(SETTINGS, payload=b"".join(struct.pack(">HI", *pair) for pair in pairs))


def call(path, body=b"", stream=1, metadata=()):
    """A unary call, whole."""
    return frame(HEADERS, END_HEADERS, stream, request(path, *metadata)) + frame(DATA, END_STREAM, stream, message(body))


def window_update(stream, amount):
    return frame(WINDOW_UPDATE, stream=stream, payload=struct.pack(">I", amount))


def split(data):
    """[(kind, flags, stream, payload)] of whole frames, and what is left."""
    frames = []
    while len(data) >= 9 and len(data) >= 9 + (length := int.from_bytes(data[:3], "big")):
        kind, flags, stream = struct.unpack(">BBI", data[3:9])
        frames.append((kind, flags, stream & WINDOW_MAX, data[9:9 + length]))
        data = data[9 + length:]
    return frames, data


def split_messages(data):
    """[body] of whole messages in gRPC's frames, and what is left."""
    bodies, at = [], 0
    while len(data) >= at + 5 and len(data) >= (end := at + 5 + int.from_bytes(data[at + 1:at + 5], "big")):
        bodies.append(data[at + 5:end])
        at = end
    return bodies, data[at:]


def connect(address, timeout=10):
    """unix:PATH, HOST:PORT or tcp://HOST:PORT."""
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(timeout)
        sock.connect(address[5:])
        return sock
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout)


def seal(sock):
    """TLS with whoever answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(sock)


class Watcher:
    """A WatchSteps stream over windows without end, read as fast as Python can: `take` says how many messages came."""

    def __init__(self, address, request=b"", metadata=()):
        self.sock = connect(address)
        self.sock.sendall(PREFACE + settings((INITIAL_WINDOW_SIZE, WINDOW_MAX)) + window_update(0, WINDOW_MAX - 65535)
                          + call("/gacc.v1.Control/WatchSteps", request, metadata=metadata))
        self.sock.setblocking(False)
        self.frames, self.messages, self.last = b"", b"", b""

    def take(self, buffer):
        """`buffer` holds what is read meanwhile."""
        try:
            count = self.sock.recv_into(buffer)
        except BlockingIOError:
            return 0
        if count == 0:
            raise ConnectionError("the server has closed")
        frames, self.frames = split(self.frames + buffer[:count])
        bodies, self.messages = split_messages(self.messages + b"".join(frame[3] for frame in frames if frame[0] == DATA))
        self.last = bodies[-1] if bodies else self.last
        return len(bodies)

    def close(self):
        self.sock.close()
