"""What strangers, other users' programs and broken clients do to a job's addresses: one table of attacks, each a function of a target."""
import base64
import random
import select
import socket
import ssl
import struct
import time

import http2
from http2 import ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame

OWNER, OPERATOR, WORKER = "owner", "operator", "worker"  # the coordinator's trust in who comes through an address
OPERATORS = (OWNER, OPERATOR)
EVERYBODY = (OWNER, OPERATOR, WORKER)
LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Target:
    def __init__(self, address, trust, token=None, invitation=None):
        self.address, self.trust, self.is_sealed = address, trust, trust == WORKER
        self.path = "/gacc.v1.Workers/Join" if trust == WORKER else "/gacc.v1.Control/SetParameters"
        self.stream = "/gacc.v1.Workers/Join" if trust == WORKER else "/gacc.v1.Control/WatchSteps"
        self.metadata = [("authorization", f"Bearer {token}")] if token else []
        if trust == WORKER:
            self.metadata = [("gacc-secret-bin", base64.b64encode(invitation.secret).decode())]

    def begin(self, path=None, stream=1, flags=0, metadata=None):
        """The HEADERS of an admitted call."""
        return frame(HEADERS, END_HEADERS | flags, stream, http2.request(path or self.path, *(self.metadata if metadata is None else metadata)))


class Peer:
    """One hostile connection, through TLS where the address wants that. It reads what comes, unless told not to."""

    def __init__(self, target, hello=True, reads=True, sealed=True):
        self.sock, self.reads, self.ended = http2.connect(target.address), reads, False
        self.frames, self.answered = b"", 0  # what is no whole frame yet; streams that the server has ended
        try:
            if target.is_sealed and sealed:
                self.sock = http2.seal(self.sock)
        except OSError:  # it had to make room for others; the socket is gone with its handshake
            self.sock, self.ended = socket.socket(), True
        self.sock.setblocking(False)
        if hello:
            self.send(http2.PREFACE + http2.settings())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def receive(self):
        """All that is there."""
        try:
            while not self.ended:
                data = self.sock.recv(1 << 18)
                self.ended = not data
                frames, self.frames = http2.split(self.frames + data)
                self.answered += sum(kind in (DATA, HEADERS) and flags & END_STREAM for kind, flags, _, _ in frames)
        except LATER:
            pass
        except OSError:
            self.ended = True

    def send(self, data, patience=2):
        """False where the server has closed, or takes nothing for so many seconds."""
        data = memoryview(data)
        while data and not self.ended:
            readable, writable, _ = select.select([self.sock] if self.reads else [], [self.sock], [], patience)
            if readable:
                self.receive()
            if not readable and not writable:
                return False
            if writable and not self.ended:
                try:
                    data = data[self.sock.send(data[:1 << 16]):]
                except LATER:
                    pass
                except OSError:
                    self.ended = True
        return not self.ended

    def is_closed(self, seconds):
        """By the server, within so many seconds."""
        end = time.monotonic() + seconds
        while not self.ended and (left := end - time.monotonic()) > 0:
            if select.select([self.sock], [], [], left)[0]:
                self.receive()
        return self.ended


# ---- attacks: each says whether the server did what it has to; how: .scale, .seconds (patience), .random ----

def random_bytes(target, how):
    """Closed, or answered as no request, or still waiting for more."""
    for hello, sealed in ((False, False), (False, True), (True, True)) * 3 * how.scale:
        with Peer(target, hello, sealed=sealed) as peer:
            peer.send(how.random.randbytes(how.random.randrange(1, 20000)))
            peer.is_closed(0.02)
    return True


def disconnects_in_the_middle_of_every_message(target, how):
    """The connection ends, or is reset, behind every few bytes of a conversation with a message in it."""
    body = bytes([10, 8, 10, 2, 97, 98, 18, 2, 99, 100])
    whole = http2.PREFACE + http2.settings() + target.begin() + frame(DATA, END_STREAM, 1, http2.message(body)) + target.begin(target.stream, 3) + frame(DATA, 0, 3, http2.message(body))
    for at in range(0, len(whole) + 1, max(1, 11 // how.scale)):
        with Peer(target, hello=False) as peer:
            peer.send(whole[:at])
            if at % 2:
                peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return True


def half_messages(target, how):
    """Held on all streams of some connections: a megabyte of messages that never end."""
    for _ in range(4):
        peer = how.hold(Peer(target))
        for stream in range(1, 200, 2):
            peer.send(target.begin(stream=stream) + frame(DATA, 0, stream, http2.message(bytes(10000), length=100000)))
    return True


def survives(target, attack):
    """Whether the connection goes on. A stranger may have to make room for others before he is heard: then once more."""
    for _ in range(10):
        with Peer(target) as peer:
            attack(peer)
            if not peer.ended:
                return True
    return False


def lengths_that_lie(target, how):
    """The call ends, the connection does not."""
    def lie(peer):
        for at, length in enumerate((0xFFFFFFFF, 0x80000000, (4 << 20) + 1)):
            peer.send(target.begin(stream=2 * at + 1) + frame(DATA, 0, 2 * at + 1, http2.message(bytes(100), length=length)))
        peer.is_closed(0.1)
    return survives(target, lie)


def header_bomb(target, how):
    """An entry of 4,000 bytes in HPACK's table, named thousands of times; then one field that is simply too large."""
    entry = b"\x40" + http2.integer(1, 7) + b"x" + http2.integer(3900, 7) + b"y" * 3900
    for stream in range(1, 60 * how.scale, 2):
        with Peer(target) as peer:
            peer.send(frame(HEADERS, END_HEADERS, stream, http2.request(target.path, *target.metadata) + entry + b"\xbe" * 12000))
            peer.send(frame(HEADERS, END_HEADERS, stream + 2, http2.request(target.path) + http2.field("z", b"z" * 15000)))
            peer.is_closed(0.01)
    return True


def floods(*kinds):
    """So many frames that say nothing, of each kind: closed."""
    def flood(target, how):
        for at, one in enumerate(kinds):
            with Peer(target) as peer:
                peer.send(target.begin())
                peer.send(one * 20000 * how.scale, how.seconds)
                if not peer.is_closed(how.seconds):
                    raise OSError(f"kind {at} is endured")
        return True
    return flood


def rapid_reset(target, how):
    """Calls that are begun and reset at once: closed."""
    with Peer(target) as peer:
        for stream in range(1, 10000 * how.scale, 2):
            if not peer.send(target.begin(stream=stream) + frame(RST_STREAM, 0, stream, struct.pack(">I", 8)), how.seconds):
                break
        return peer.is_closed(how.seconds)


MISTAKES = (  # after a call's HEADERS: the server has to reset it
    lambda stream: frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 0)),
    lambda stream: http2.window_update(stream, http2.WINDOW_MAX),
    lambda stream: frame(PRIORITY, 0, stream, struct.pack(">IB", stream, 1)),
    lambda stream: frame(DATA, END_STREAM, stream) + frame(DATA, 0, stream, b"late"),
    lambda stream: frame(HEADERS, END_HEADERS, stream, http2.field(":path", "/twice")),
)


def resets_that_the_server_causes(target, how):
    """Each call is reset because of what follows it: closed, however the calls are made to end."""
    for mistake in MISTAKES:
        with Peer(target) as peer:
            for stream in range(1, 10000 * how.scale, 2):
                if not peer.send(target.begin(stream=stream) + mistake(stream), how.seconds):
                    break
            if not peer.is_closed(how.seconds):
                return False
    return True


def continuation_flood(target, how):
    """A header block without end, of empty frames and of full ones: closed."""
    for piece in (frame(CONTINUATION, 0, 1), frame(CONTINUATION, 0, 1, http2.field("x", "y" * 1000) * 15)):
        with Peer(target) as peer:
            peer.send(frame(HEADERS, 0, 1, http2.request(target.path)))
            for _ in range(200 * how.scale):
                if not peer.send(piece * (100 if len(piece) < 100 else 1), how.seconds):
                    break
            if not peer.is_closed(how.seconds):
                return False
    return True


def zero_windows(target, how):
    """Held: calls whose answers may not be sent."""
    for _ in range(4):
        peer = how.hold(Peer(target, hello=False))
        peer.send(http2.PREFACE + http2.settings((http2.INITIAL_WINDOW_SIZE, 0)))
        for stream in range(1, 200, 2):
            peer.send(target.begin("/gacc.v1.Control/GetConfig" if target.trust in OPERATORS else None, stream) + frame(DATA, END_STREAM, stream, http2.message()))
    return True


def answers_that_nobody_reads(target, how):
    """The server stops reading, and keeps little: calls and pings without end on a connection whose peer does not read."""
    path = "/gacc.v1.Control/GetStatus" if target.trust in OPERATORS else None
    peer = how.hold(Peer(target, hello=False, reads=False))
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.send(http2.PREFACE + http2.settings((http2.INITIAL_WINDOW_SIZE, http2.WINDOW_MAX)) + http2.window_update(0, http2.WINDOW_MAX - 65535))
    for first in range(1, 2000000, 100):  # a refusal takes 13 bytes, a server's socket 4 MB
        calls = (target.begin(path, stream) + frame(DATA, END_STREAM, stream, http2.message()) for stream in range(first, first + 100, 2))
        if not peer.send(b"".join(calls) + frame(PING, payload=bytes(8)), 0.3):
            return True
    return False


def slow_bodies(target, how):
    """Held: a message that comes byte by byte."""
    for _ in range(10):
        how.drip(Peer(target), target.begin() + frame(DATA, 0, 1, http2.message(bytes(2000))))
    return True


def slow_headers(target, how):
    """Held: a call, no call at all, and the beginning of a TLS handshake, byte by byte."""
    for start, sealed in ((b"", True), (http2.PREFACE, True), (b"\x16\x03\x01\x40\x00\x01", False)):
        for _ in range(5):
            how.drip(Peer(target, hello=False, sealed=sealed), start + http2.settings() + target.begin())
    return True


def idle_connections(target, how):
    """Held: 200 of them, half of which have not said a word."""
    for each in range(200):
        how.hold(Peer(target, hello=each % 2 == 1, sealed=each % 2 == 1))
    return True


def varint(value):
    return bytes([value]) if value < 128 else bytes([value % 128 + 128]) + varint(value // 128)


def protobuf_bombs(target, how):
    """Deep, and what takes much more memory than bytes: answered, the connection goes on."""
    deep = b""
    while len(deep) < 20000:
        deep = b"\x0a" + varint(len(deep)) + deep
    bombs = (deep, b"\x0a\x00" * (2 << 20), b"\x0b" * 100000, b"\xff" * 100000, b"\x12\x00" * 100000)

    def explode(peer):
        for at, bomb in enumerate(bombs):
            stream, message = 2 * at + 1, http2.message(bomb[:(4 << 20) - 5])
            peer.send(target.begin(stream=stream) + b"".join(frame(DATA, 0, stream, message[cut:cut + 16384]) for cut in range(0, len(message), 16384)))
            peer.is_closed(0.05)
    return survives(target, explode)


def wrong_secrets(target, how):
    """Ten thousand calls, each refused."""
    wrong = [("authorization", "Bearer " + "0" * 64), ("gacc-secret-bin", base64.b64encode(bytes(32)).decode())]
    if target.trust == OWNER:
        return True
    answered, end = 0, time.monotonic() + 6 * how.seconds
    while answered < 10000 and time.monotonic() < end:
        with Peer(target) as peer:
            while not peer.ended and answered + peer.answered < 10000:
                streams = range(2 * peer.answered + 1, 2 * peer.answered + 101, 2)  # 50 at once
                peer.send(b"".join(target.begin(stream=stream, metadata=wrong, flags=END_STREAM) for stream in streams))
                while not peer.ended and 2 * peer.answered < streams[-1]:
                    select.select([peer.sock], [], [], how.seconds)
                    peer.receive()
            answered += peer.answered
    return answered >= 10000


def http1_nonsense(target, how):
    """Answered with 400 and more, and closed; or held by a head that does not end."""
    texts = (b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"/" * 20000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20000,
             b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n", b"G" * 100000,
             b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n")
    for text in texts:
        with Peer(target, hello=False) as peer:
            peer.send(text)
            if not peer.is_closed(how.seconds):
                return False
    peer = how.hold(Peer(target, hello=False, reads=False))
    peer.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20000, 0.3)
    for _ in range(10):
        how.drip(Peer(target, hello=False), b"GET /metrics HTTP/1.1\r\nHost: " + b"x" * 1000)
    return True


ATTACKS = (
    (EVERYBODY, idle_connections),
    (EVERYBODY, slow_headers),
    (EVERYBODY, slow_bodies),
    (EVERYBODY, random_bytes),
    (EVERYBODY, disconnects_in_the_middle_of_every_message),
    (EVERYBODY, half_messages),
    (EVERYBODY, lengths_that_lie),
    (EVERYBODY, header_bomb),
    (EVERYBODY, floods(http2.settings(), frame(PING, payload=bytes(8)), frame(DATA, 0, 1), frame(PRIORITY, 0, 1, struct.pack(">IB", 3, 1)),
                       frame(SETTINGS, ACK), frame(PING, ACK, payload=bytes(8)), frame(200, 0, 0, b"?"), http2.window_update(0, 1))),
    (EVERYBODY, rapid_reset),
    (EVERYBODY, resets_that_the_server_causes),
    (EVERYBODY, continuation_flood),
    (EVERYBODY, zero_windows),
    (EVERYBODY, answers_that_nobody_reads),
    (EVERYBODY, protobuf_bombs),
    (EVERYBODY, wrong_secrets),
    (OPERATORS, http1_nonsense),
)


class How:
    """How hard the attacks are, and what is held open meanwhile."""

    def __init__(self, scale=1, seconds=10):
        self.scale, self.seconds, self.random = scale, seconds, random.Random(1337)
        self.held, self.dripping = [], []

    def hold(self, peer):
        self.held.append(peer)
        return peer

    def drip(self, peer, data):
        self.dripping.append([self.hold(peer), data])

    def tick(self):
        """One more byte of everything that comes slowly; who was closed is let go."""
        for drop in self.dripping:
            if drop[1] and drop[0].send(drop[1][:1], 0):
                drop[1] = drop[1][1:]
        for peer in self.held:
            if peer.reads:
                peer.receive()

    def close(self):
        for peer in self.held:
            peer.sock.close()
