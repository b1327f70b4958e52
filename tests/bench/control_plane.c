/*
 * What the control plane costs. One process plays N ranks, another the coordinator; per step N reports go up and, when
 * all are in, N decisions come down. gRPC (HTTP/2, protobuf at the coordinator) is measured against the same payloads
 * behind a four-byte length, in alternating blocks of one run. Then one rank's control client: the time and the CPU of
 * one exchange as a worker sees it.
 *
 *     control_plane [STEPS_AT_N_2]
 */
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/rpc/rpc.h"
#include "worker/control_client.h"

#define RANKS_MAX 1024
#define BLOCK 5 /* steps of one kind before the other kind has its turn */
#define DECISION_MAX (64u << 10)

enum kind { GRPC, RAW, KINDS };
static const char *const kind_names[KINDS] = {"gRPC", "raw"};

static void require(bool holds, const char *what)
{
    if (holds) return;
    perror(what);
    exit(1);
}

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- one connection, either end, either kind ---- */

struct group;

struct peer {
    struct group *group;
    int fd;
    struct rpc_connection *rpc; /* NULL: raw */
    struct rpc_call *call;
    uint8_t *in, *out; /* raw: bytes of half a message; one framed message */
    size_t in_length;
};

struct group {
    enum kind kind;
    uint32_t ranks, arrived;
    uint32_t shares; /* in the plan of a decision */
    struct peer *peers;
    void (*message)(struct group *group, const uint8_t *bytes, size_t length);
};

static void write_all(int fd, const uint8_t *bytes, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t written = send(fd, bytes + done, length - done, MSG_NOSIGNAL);
        require(written > 0, "send");
        done += (size_t)written;
    }
}

static void peer_flush(struct peer *peer)
{
    const uint8_t *bytes;
    for (size_t length; (length = rpc_output(peer->rpc, &bytes)) > 0;) write_all(peer->fd, bytes, length);
}

static void peer_send(struct peer *peer, const uint8_t *message, size_t length)
{
    if (peer->rpc != NULL) {
        require(rpc_call_send(peer->call, message, length) == 0, "rpc_call_send");
        peer_flush(peer);
        return;
    }
    uint32_t header = (uint32_t)length;
    memcpy(peer->out, &header, sizeof header);
    memcpy(peer->out + sizeof header, message, length);
    write_all(peer->fd, peer->out, sizeof header + length);
}

static void raw_input(struct peer *peer, const uint8_t *bytes, size_t length)
{
    if (peer->in_length > 0) {
        memcpy(peer->in + peer->in_length, bytes, length);
        bytes = peer->in;
        length += peer->in_length;
    }
    uint32_t size;
    while (length >= sizeof size) {
        memcpy(&size, bytes, sizeof size);
        if (length < sizeof size + size) break;
        peer->group->message(peer->group, bytes + sizeof size, size);
        bytes += sizeof size + size;
        length -= sizeof size + size;
    }
    memmove(peer->in, bytes, length);
    peer->in_length = length;
}

/* false: the other end has closed. */
static bool peer_read(struct peer *peer)
{
    static uint8_t buffer[64u << 10];
    ssize_t length = recv(peer->fd, buffer, sizeof buffer, 0);
    if (length <= 0) return false;
    if (peer->rpc == NULL) {
        raw_input(peer, buffer, (size_t)length);
    } else {
        struct error error;
        require(rpc_input(peer->rpc, buffer, (size_t)length, &error) == 0, "rpc_input");
        peer_flush(peer);
    }
    return true;
}

static void peer_open(struct peer *peer, struct group *group, int fd, int poll)
{
    *peer = (struct peer){.group = group, .fd = fd};
    if (group->kind == RAW) {
        peer->in = malloc(2 * DECISION_MAX);
        peer->out = malloc(DECISION_MAX);
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};
    require(epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

/* false: an end has closed. */
static bool wait_and_read(int poll)
{
    static struct epoll_event events[RANKS_MAX];
    int count = epoll_wait(poll, events, RANKS_MAX, -1);
    for (int i = 0; i < count; i++) {
        if (!peer_read(events[i].data.ptr)) return false;
    }
    return true;
}

/* ---- messages of realistic size ---- */

static size_t pack_report(uint8_t *packed)
{
    Gacc__V1__Seconds times = GACC__V1__SECONDS__INIT;
    Gacc__V1__Report report = GACC__V1__REPORT__INIT;
    Gacc__V1__WorkerMessage message = GACC__V1__WORKER_MESSAGE__INIT;
    times.step = times.data = times.compute = times.reduce = times.decision = times.update = times.gather = 0.123;
    report.step = 123456;
    report.finite = 1;
    report.sum_squares_scaled = report.sum_squares = report.loss_sum = report.weight = report.next_weight = 1234.5;
    report.micro_batches = report.next_micro_batches = 8;
    report.reduce_scatters = 1;
    report.reduce_scatter_bytes = 3200000;
    report.seconds = &times;
    message.body_case = GACC__V1__WORKER_MESSAGE__BODY_REPORT;
    message.report = &report;
    return gacc__v1__worker_message__pack(&message, packed);
}

static size_t pack_decision(uint8_t *packed, uint64_t step, uint32_t ranks)
{
    static uint32_t shares[RANKS_MAX];
    for (uint32_t rank = 0; rank < ranks; rank++) shares[rank] = 8;
    Gacc__V1__Plan plan = GACC__V1__PLAN__INIT;
    Gacc__V1__Window window = GACC__V1__WINDOW__INIT;
    Gacc__V1__Decision decision = GACC__V1__DECISION__INIT;
    Gacc__V1__CoordinatorMessage message = GACC__V1__COORDINATOR_MESSAGE__INIT;
    plan.step = step + 2;
    plan.first = plan.count = 8 * 12 * ranks;
    plan.micro = 12;
    plan.n_shares = ranks;
    plan.shares = shares;
    window.step = step + 1;
    window.scale = 65536;
    window.weight = window.lr = 1234.5;
    window.micro_batches = 8 * ranks;
    window.optimizer_steps = step;
    decision.step = step;
    decision.verdict = GACC__V1__VERDICT__VERDICT_APPLY;
    decision.clip_coefficient = 0.5;
    decision.next = &window;
    decision.plan = &plan;
    message.body_case = GACC__V1__COORDINATOR_MESSAGE__BODY_DECISION;
    message.decision = &decision;
    return gacc__v1__coordinator_message__pack(&message, packed);
}

/* ---- the coordinator ---- */

static void coordinator_message(struct group *group, const uint8_t *bytes, size_t length)
{
    static uint8_t packed[DECISION_MAX];
    static size_t raw_length;
    static uint64_t step;
    if (group->kind == GRPC) {
        Gacc__V1__WorkerMessage *message = gacc__v1__worker_message__unpack(NULL, length, bytes);
        require(message != NULL, "unpack");
        bool is_report = message->body_case == GACC__V1__WORKER_MESSAGE__BODY_REPORT;
        gacc__v1__worker_message__free_unpacked(message, NULL);
        if (!is_report) return;
    }
    if (++group->arrived < group->ranks) return;
    group->arrived = 0;
    if (group->kind == GRPC || raw_length == 0) raw_length = pack_decision(packed, ++step, group->shares);
    for (uint32_t rank = 0; rank < group->ranks; rank++) peer_send(&group->peers[rank], packed, raw_length);
}

static void join_begin(struct rpc_call *call, void *context)
{
    struct peer *peer = context;
    peer->call = call;
}

static void peer_message(struct rpc_call *call, const uint8_t *bytes, size_t length, void *context)
{
    (void)call;
    struct peer *peer = context;
    peer->group->message(peer->group, bytes, length);
}

static const struct rpc_method methods[] = {
    {.path = "/gacc.v1.Workers/Join", .begin = join_begin, .message = peer_message},
    {0},
};

static void coordinator(int (*sockets[KINDS])[2], uint32_t ranks)
{
    struct group groups[KINDS];
    int poll = epoll_create1(0);
    for (enum kind kind = GRPC; kind < KINDS; kind++) {
        groups[kind] = (struct group){kind, ranks, 0, ranks, calloc(ranks, sizeof(struct peer)), coordinator_message};
        for (uint32_t rank = 0; rank < ranks; rank++) {
            struct peer *peer = &groups[kind].peers[rank];
            close(sockets[kind][rank][0]);
            peer_open(peer, &groups[kind], sockets[kind][rank][1], poll);
            struct error error;
            if (kind == GRPC) rpc_server_open(&peer->rpc, methods, peer, NULL, &error);
        }
    }
    while (wait_and_read(poll)) {
    }
    exit(0);
}

/* ---- the ranks ---- */

static void rank_message(struct group *group, const uint8_t *bytes, size_t length)
{
    (void)bytes, (void)length;
    group->arrived++;
}

static const struct rpc_method join = {.path = "/gacc.v1.Workers/Join", .message = peer_message};

static double one_step(struct group *group, int poll, const uint8_t *report, size_t length)
{
    double start = seconds(CLOCK_MONOTONIC);
    group->arrived = 0;
    for (uint32_t rank = 0; rank < group->ranks; rank++) peer_send(&group->peers[rank], report, length);
    while (group->arrived < group->ranks) require(wait_and_read(poll), "the coordinator is gone");
    return seconds(CLOCK_MONOTONIC) - start;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare);
    return values[count / 2];
}

static void measure(uint32_t ranks, size_t steps)
{
    int(*sockets[KINDS])[2];
    struct group groups[KINDS];
    double *times[KINDS];
    for (enum kind kind = GRPC; kind < KINDS; kind++) {
        sockets[kind] = calloc(ranks, sizeof *sockets[kind]);
        for (uint32_t rank = 0; rank < ranks; rank++) {
            require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets[kind][rank]) == 0, "socketpair");
        }
    }
    pid_t child = fork();
    if (child == 0) coordinator(sockets, ranks);

    int poll = epoll_create1(0);
    for (enum kind kind = GRPC; kind < KINDS; kind++) {
        groups[kind] = (struct group){kind, ranks, 0, ranks, calloc(ranks, sizeof(struct peer)), rank_message};
        times[kind] = calloc(steps, sizeof(double));
        for (uint32_t rank = 0; rank < ranks; rank++) {
            struct peer *peer = &groups[kind].peers[rank];
            close(sockets[kind][rank][1]);
            peer_open(peer, &groups[kind], sockets[kind][rank][0], poll);
            if (kind == RAW) continue;
            struct error error;
            rpc_client_open(&peer->rpc, "coordinator", NULL, &error);
            peer->call = rpc_call_begin(peer->rpc, &join, peer, NULL, 0);
        }
    }
    uint8_t report[512];
    size_t length = pack_report(report);
    for (int warm = 0; warm < 3; warm++) {
        for (enum kind kind = GRPC; kind < KINDS; kind++) one_step(&groups[kind], poll, report, length);
    }
    for (size_t step = 0; step < steps; step += BLOCK) {
        for (enum kind kind = GRPC; kind < KINDS; kind++) {
            for (size_t i = step; i < step + BLOCK && i < steps; i++)
                times[kind][i] = one_step(&groups[kind], poll, report, length);
        }
    }
    uint8_t *decision = malloc(DECISION_MAX);
    double p50[KINDS] = {median(times[GRPC], steps), median(times[RAW], steps)};
    printf("N=%-5u report %zu B, decision %zu B: %s %.1f us, %s %.1f us, ratio %.2f\n", ranks, length,
           pack_decision(decision, 1, ranks), kind_names[GRPC], 1e6 * p50[GRPC], kind_names[RAW], 1e6 * p50[RAW],
           p50[GRPC] / p50[RAW]);
    fflush(stdout);
    free(decision);
    for (enum kind kind = GRPC; kind < KINDS; kind++) {
        for (uint32_t rank = 0; rank < ranks; rank++) {
            struct peer *peer = &groups[kind].peers[rank];
            rpc_close(peer->rpc);
            close(peer->fd);
            free(peer->in);
            free(peer->out);
        }
        free(groups[kind].peers);
        free(times[kind]);
        free(sockets[kind]);
    }
    close(poll);
    waitpid(child, NULL, 0);
}

/* ---- one rank's control client ---- */

static void lone_coordinator(int listener, uint32_t shares)
{
    int poll = epoll_create1(0);
    struct peer peer;
    struct group group = {GRPC, 1, 0, shares, &peer, coordinator_message};
    peer_open(&peer, &group, accept(listener, NULL, NULL), poll);
    struct error error;
    rpc_server_open(&peer.rpc, methods, &peer, NULL, &error);
    while (wait_and_read(poll)) {
    }
    exit(0);
}

static void on_lost(void *context, const struct error *error)
{
    (void)context;
    fprintf(stderr, "%s\n", error->text);
    exit(1);
}

static void on_farewell(void *context, const Gacc__V1__Farewell *farewell)
{
    (void)context, (void)farewell;
}

static double process_cpu(void)
{
    return seconds(CLOCK_PROCESS_CPUTIME_ID);
}

static void measure_worker(uint32_t shares, size_t steps)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "/tmp/gacc-control-plane.%d", (int)getpid());
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    require(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0, "bind");
    pid_t child = fork();
    if (child == 0) lone_coordinator(listener, shares);

    char address[128];
    snprintf(address, sizeof address, "unix:%s", at.sun_path);
    const struct control_client_events events = {on_lost, on_farewell, NULL, NULL, NULL};
    const uint8_t secret[CONTROL_SECRET] = {0};
    struct control *control;
    struct error error;
    const struct control_address to = {.addresses = address, .secret = secret};
    require(control_client_open(&control, &to, 0, 60, &events, &error) == 0, "control_client_open");
    unlink(at.sun_path);

    double *times = calloc(steps, sizeof *times);
    Gacc__V1__Report report = GACC__V1__REPORT__INIT;
    report.sum_squares = report.sum_squares_scaled = report.loss_sum = report.weight = 1.5;
    double cpu = process_cpu(), own = seconds(CLOCK_THREAD_CPUTIME_ID);
    for (size_t step = 0; step < steps; step++) {
        Gacc__V1__Decision *decision;
        double start = seconds(CLOCK_MONOTONIC);
        report.step = step;
        require(control->report(control, &report, &decision, &error) == 0, "report");
        times[step] = seconds(CLOCK_MONOTONIC) - start;
        gacc__v1__decision__free_unpacked(decision, NULL);
    }
    own = seconds(CLOCK_THREAD_CPUTIME_ID) - own;
    cpu = process_cpu() - cpu - own;
    printf("worker, plan of %u ranks: exchange p50 %.1f us, CPU of the control thread %.1f us, of the compute thread "
           "%.1f us\n",
           shares, 1e6 * median(times, steps), 1e6 * cpu / (double)steps, 1e6 * own / (double)steps);
    fflush(stdout);
    free(times);
    control_client_close(control);
    close(listener);
    waitpid(child, NULL, 0);
}

int main(int argc, char **argv)
{
    size_t steps = argc > 1 ? strtoul(argv[1], NULL, 10) : 4000;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);

    static const struct {
        uint32_t ranks;
        size_t fewer; /* steps are divided by this */
    } sizes[] = {{2, 1}, {8, 2}, {64, 10}, {1024, 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) measure(sizes[i].ranks, steps / sizes[i].fewer + 1);
    measure_worker(2, steps);
    measure_worker(RANKS_MAX, steps / 4 + 1);
    return 0;
}
