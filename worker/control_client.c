#include "worker/control_client.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "proto/rpc/rpc.h"
#include "worker/control_connect.h"

#define STATE_INTERVAL_MS 50
#define IDLE_INTERVAL_NS 1000000
#define HEARTBEAT_MS 1000
#define SILENCE_MS 2000 /* of the coordinator, before it is spoken of */
#define READ_SIZE (64u << 10)
#define PLAIN_SIZE (16u << 10)                       /* a record of TLS */
#define SEALED_SIZE (RPC_OUTPUT_ROUND + (32u << 10)) /* a round of rpc_output, and a frame */
#define OUTBOX_MAX RPC_MESSAGE_MAX

typedef Gacc__V1__WorkerMessage worker_message;
typedef Gacc__V1__CoordinatorMessage coordinator_message;

enum awaited {
    AWAIT_NOTHING,
    AWAIT_WELCOME, /* or a farewell */
    AWAIT_DECISION,
    AWAIT_FAREWELL,
};

/* Packed messages, each behind its length (uint32_t in the machine's order); at most OUTBOX_MAX. */
struct outbox {
    uint8_t *bytes;
    size_t length, capacity;
};

struct control_client {
    struct control control; /* first: a control is a control_client */
    struct control_client_events events;
    uint32_t rank;
    uint64_t timeout_ms, heartbeat_ms;
    int wake; /* eventfd: the mailbox has something */
    pthread_t thread;
    _Atomic uint64_t state; /* packed by pack_state */

    /* The mailbox. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct outbox outbox;
    enum awaited awaited;
    coordinator_message *answer; /* the slot */
    bool over;                   /* no answer will come any more: `end` says why */
    struct error end;
    bool prints;
    bool asks_at_hello; /* a checkpoint, as soon as this rank is known */
    bool hailed;        /* a hello was posted: whatever is posted behind it comes from a rank known by name */
    bool closing;

    /* The control thread's own. */
    struct control_line line;
    struct rpc_connection *connection;
    struct rpc_call *call; /* NULL once gone */
    struct outbox sending;
    uint8_t *unwritten; /* what the socket did not take of a round of next_output */
    size_t unwritten_length, unwritten_capacity;
    bool is_deaf;      /* the coordinator has closed: nothing can be sent, but why may be there to be read */
    bool greeted;      /* the coordinator knows this rank's name */
    bool taking_leave; /* a farewell came: the end of the stream is no loss */
    bool stopped;
    uint64_t state_sent, state_time_ms, ping_time_ms;
    uint64_t unanswered_since_ms; /* of the oldest ping without any input after it; 0: none */
    bool told_of_silence;         /* … which has been so for SILENCE_MS */
    uint8_t buffer[READ_SIZE];
    uint8_t plain[PLAIN_SIZE];   /* what TLS makes of it */
    uint8_t sealed[SEALED_SIZE]; /* by TLS, for the socket */
};

static struct control_client *client_of(const struct control *control)
{
    return (struct control_client *)(uintptr_t)control;
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* One word, so that a state is never torn: step (40 bits), state (4), micro-batch (20, the largest stands for all
 * above). */
static uint64_t pack_state(uint64_t step, Gacc__V1__State state, uint32_t micro_batch)
{
    const uint32_t largest = (1u << 20) - 1;
    return step << 24 | (uint64_t)state << 20 | (micro_batch < largest ? micro_batch : largest);
}

static Gacc__V1__StateChange unpack_state(uint64_t packed)
{
    Gacc__V1__StateChange change = GACC__V1__STATE_CHANGE__INIT;
    change.step = packed >> 24;
    change.state = (Gacc__V1__State)(packed >> 20 & 15);
    change.micro_batch = (uint32_t)(packed & ((1u << 20) - 1));
    return change;
}

/* Packs a message behind what is already there. */
static int outbox_add(struct outbox *outbox, const worker_message *message)
{
    size_t size = gacc__v1__worker_message__get_packed_size(message);
    size_t needed = outbox->length + sizeof(uint32_t) + size;
    if (size > OUTBOX_MAX || needed > OUTBOX_MAX) return -1;
    if (needed > outbox->capacity) {
        size_t capacity = needed < 1024 ? 1024 : 2 * needed;
        uint8_t *bytes = realloc(outbox->bytes, capacity);
        if (bytes == NULL) return -1;
        outbox->bytes = bytes;
        outbox->capacity = capacity;
    }
    uint32_t length = (uint32_t)size;
    memcpy(outbox->bytes + outbox->length, &length, sizeof length);
    gacc__v1__worker_message__pack(message, outbox->bytes + outbox->length + sizeof length);
    outbox->length = needed;
    return 0;
}

/* ---- the control thread ---- */

/* The end, whatever it was: tells the caller's callback first, then whoever is blocked. */
static void stop(struct control_client *client, const struct error *why, const Gacc__V1__Farewell *farewell)
{
    if (client->stopped) return;
    client->stopped = true;
    pthread_mutex_lock(&client->lock);
    bool silent = client->closing;
    pthread_mutex_unlock(&client->lock);
    if (farewell != NULL)
        client->events.farewell(client->events.context, farewell);
    else if (!client->taking_leave && !silent)
        client->events.lost(client->events.context, why);
    pthread_mutex_lock(&client->lock);
    client->over = true;
    client->end = *why;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
}

__attribute__((format(printf, 2, 3))) static void lose(struct control_client *client, const char *format, ...)
{
    struct error why;
    va_list arguments;
    va_start(arguments, format);
    char detail[512];
    vsnprintf(detail, sizeof detail, format, arguments);
    va_end(arguments);
    error_set(&why, STATUS_INTERNAL, "the coordinator is gone: %s", detail);
    stop(client, &why, NULL);
}

static void farewell_error(struct error *error, const Gacc__V1__Farewell *farewell)
{
    const Gacc__V1__Failure *failure = farewell->failure;
    if (failure == NULL || failure->status == 0) {
        error_set(error, STATUS_INTERNAL, "the coordinator said farewell before the job was over");
    } else {
        error_received(error, failure->status, failure->text);
    }
}

static bool answers(enum awaited awaited, const coordinator_message *message)
{
    switch (message->body_case) {
    case GACC__V1__COORDINATOR_MESSAGE__BODY_WELCOME:
        return awaited == AWAIT_WELCOME;
    case GACC__V1__COORDINATOR_MESSAGE__BODY_DECISION:
        return awaited == AWAIT_DECISION;
    case GACC__V1__COORDINATOR_MESSAGE__BODY_FAREWELL:
        return awaited == AWAIT_WELCOME || awaited == AWAIT_FAREWELL;
    default:
        return false;
    }
}

/* Puts an awaited message into the slot; false: nobody waits for it. */
static bool put_answer(struct control_client *client, coordinator_message *message)
{
    bool is_farewell = message->body_case == GACC__V1__COORDINATOR_MESSAGE__BODY_FAREWELL;
    pthread_mutex_lock(&client->lock);
    bool awaited = client->answer == NULL && answers(client->awaited, message);
    if (awaited) {
        client->answer = message;
        client->awaited = AWAIT_NOTHING;
        if (is_farewell) client->prints = message->farewell->print;
        pthread_cond_signal(&client->changed);
    }
    pthread_mutex_unlock(&client->lock);
    if (awaited && is_farewell) client->taking_leave = true;
    return awaited;
}

static void on_message(struct rpc_call *call, const uint8_t *bytes, size_t length, void *context)
{
    (void)call;
    struct control_client *client = context;
    coordinator_message *message = gacc__v1__coordinator_message__unpack(NULL, length, bytes);
    if (message == NULL) {
        lose(client, "it sent a message of %zu bytes that is not a CoordinatorMessage", length);
        return;
    }
    if (put_answer(client, message)) return;
    if (message->body_case == GACC__V1__COORDINATOR_MESSAGE__BODY_FAREWELL) {
        struct error why;
        farewell_error(&why, message->farewell);
        stop(client, &why, message->farewell);
    } else {
        lose(client, "it sent a message nobody waits for (%d)", (int)message->body_case);
    }
    gacc__v1__coordinator_message__free_unpacked(message, NULL);
}

static void on_gone(struct rpc_call *call, void *context)
{
    struct control_client *client = context;
    const char *text;
    enum rpc_code code = rpc_call_status(call, &text);
    client->call = NULL;
    if (code == RPC_OK)
        lose(client, "it ended the stream");
    else
        lose(client, "%s (grpc-status %d)", text, (int)code);
}

static const struct rpc_method join = {.path = "/gacc.v1.Workers/Join", .message = on_message, .gone = on_gone};

static void send_outbox(struct control_client *client)
{
    pthread_mutex_lock(&client->lock);
    struct outbox full = client->outbox;
    client->outbox = client->sending;
    client->outbox.length = 0;
    client->sending = full;
    if (client->closing) client->stopped = true;
    pthread_mutex_unlock(&client->lock);

    const struct outbox *sending = &client->sending;
    for (size_t at = 0; at < sending->length && client->call != NULL;) {
        uint32_t length;
        memcpy(&length, sending->bytes + at, sizeof length);
        at += sizeof length;
        if (rpc_call_send(client->call, sending->bytes + at, length) < 0)
            lose(client, "it does not read what this rank sends");
        at += length;
        client->greeted = true;
    }
}

static void send_state(struct control_client *client, uint64_t now)
{
    uint64_t state = atomic_load_explicit(&client->state, memory_order_relaxed);
    uint64_t due = client->state_time_ms + (state != client->state_sent ? STATE_INTERVAL_MS : client->heartbeat_ms);
    if (!client->greeted || client->taking_leave || client->call == NULL || now < due) return;
    client->state_sent = state;
    client->state_time_ms = now;
    Gacc__V1__StateChange change = unpack_state(state);
    worker_message message = GACC__V1__WORKER_MESSAGE__INIT;
    message.body_case = GACC__V1__WORKER_MESSAGE__BODY_STATE;
    message.state = &change;
    uint8_t packed[64]; /* three varints and four tags */
    rpc_call_send(client->call, packed,
                  gacc__v1__worker_message__pack(&message, packed)); /* the next one will do as well */
}

static void send_ping(struct control_client *client, uint64_t now)
{
    if (client->unanswered_since_ms != 0 && now - client->unanswered_since_ms > client->timeout_ms) {
        lose(client, "it has not answered for %.3g s", (double)client->timeout_ms / 1000);
    }
    if (client->unanswered_since_ms != 0 && now - client->unanswered_since_ms > SILENCE_MS &&
        !client->told_of_silence) {
        client->told_of_silence = true;
        if (client->events.silent) client->events.silent(client->events.context, SILENCE_MS * 1e-3);
    }
    if (now - client->ping_time_ms < client->heartbeat_ms) return;
    rpc_ping(client->connection);
    client->ping_time_ms = now;
    if (client->unanswered_since_ms == 0) client->unanswered_since_ms = now;
}

/* Keeps what the socket did not take. */
static bool keep(struct control_client *client, const uint8_t *bytes, size_t length)
{
    if (length > client->unwritten_capacity) {
        uint8_t *larger = realloc(client->unwritten, length);
        if (larger == NULL) return false;
        client->unwritten = larger;
        client->unwritten_capacity = length;
    }
    if (length > 0) memmove(client->unwritten, bytes, length);
    client->unwritten_length = length;
    return true;
}

/* For the socket; borrowed until the next call. 0: nothing now. */
static size_t next_output(struct control_client *client, const uint8_t **bytes)
{
    struct tls *tls = client->line.tls;
    if (tls == NULL) return rpc_output(client->connection, bytes);
    const uint8_t *plain;
    struct error error;
    size_t length = tls_output(tls, client->sealed, sizeof client->sealed);
    if (length == 0 && (length = rpc_output(client->connection, &plain)) > 0) {
        if (tls_write(tls, plain, length, &error) != 0) lose(client, "%s", error.text);
        length = tls_output(tls, client->sealed, sizeof client->sealed);
    }
    *bytes = client->sealed;
    return length;
}

static void flush(struct control_client *client)
{
    while (!client->is_deaf) {
        const uint8_t *bytes = client->unwritten;
        size_t length = client->unwritten_length;
        if (length == 0) length = next_output(client, &bytes);
        if (length == 0) return;
        ssize_t written = send(client->line.socket, bytes, length, MSG_NOSIGNAL);
        if (written < 0 && (errno == EPIPE || errno == ECONNRESET)) {
            client->is_deaf = true;
            client->unwritten_length = 0;
            return;
        }
        if (written < 0 && errno != EAGAIN && errno != EINTR) {
            lose(client, "%s", strerror(errno));
            return;
        }
        size_t done = written < 0 ? 0 : (size_t)written;
        if (!keep(client, bytes + done, length - done)) {
            lose(client, "%s", strerror(ENOMEM));
            return;
        }
        if (done < length) return;
    }
}

/* What has come through TLS and was not looked at. */
static int take_plain(struct control_client *client, struct error *error)
{
    struct tls *tls = client->line.tls;
    int status = 0;
    ssize_t length = 0;
    while (status == 0 && (length = tls_read(tls, client->plain, sizeof client->plain, error)) > 0)
        status = rpc_input(client->connection, client->plain, (size_t)length, error);
    return length < 0 ? (int)length : status;
}

static int take(struct control_client *client, size_t length, struct error *error)
{
    struct tls *tls = client->line.tls;
    if (tls == NULL) return rpc_input(client->connection, client->buffer, length, error);
    int status = tls_input(tls, client->buffer, length, error);
    return status == 0 ? take_plain(client, error) : status;
}

static void receive(struct control_client *client)
{
    ssize_t length = recv(client->line.socket, client->buffer, sizeof client->buffer, 0);
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
    struct error error;
    if (length < 0) {
        lose(client, "%s", strerror(errno));
    } else if (length == 0) {
        lose(client, "it closed the connection");
    } else if (take(client, (size_t)length, &error) != 0) {
        lose(client, "%s", error.text);
    }
    client->unanswered_since_ms = 0;
    client->told_of_silence = false;
}

static void *control_thread(void *context)
{
    struct control_client *client = context;
    struct error error;
    if (client->line.tls != NULL && take_plain(client, &error) != 0) lose(client, "%s", error.text);
    while (!client->stopped) {
        uint64_t now = now_ms();
        send_outbox(client);
        send_state(client, now);
        send_ping(client, now);
        flush(client);
        if (client->stopped) break;

        short wanted = client->unwritten_length > 0 ? POLLIN | POLLOUT : POLLIN;
        struct pollfd ready[] = {{.fd = client->line.socket, .events = wanted}, {.fd = client->wake, .events = POLLIN}};
        poll(ready, 2, STATE_INTERVAL_MS);
        if (ready[0].revents != 0) receive(client);
        uint64_t count;
        if (ready[1].revents != 0 && read(client->wake, &count, sizeof count) < 0) continue;
    }
    client->taking_leave = true; /* what rpc_close says of the call is no news */
    rpc_close(client->connection);
    shutdown(client->line.socket, SHUT_RDWR);
    return NULL;
}

/* ---- the caller's side ---- */

/* Beside whatever the rank says and waits for; the lock is held. */
static bool add_interrupted(struct control_client *client, const char *signal, uint32_t times)
{
    Gacc__V1__Interrupted interrupted = GACC__V1__INTERRUPTED__INIT;
    interrupted.signal = (char *)(uintptr_t)signal;
    interrupted.times = times;
    worker_message message = GACC__V1__WORKER_MESSAGE__INIT;
    message.body_case = GACC__V1__WORKER_MESSAGE__BODY_INTERRUPTED;
    message.interrupted = &interrupted;
    return !client->over && outbox_add(&client->outbox, &message) == 0;
}

static void wake(struct control_client *client)
{
    if (write(client->wake, &(uint64_t){1}, sizeof(uint64_t)) < 0) return; /* it is awake then */
}

static int post(struct control_client *client, const worker_message *message, enum awaited awaited, struct error *error)
{
    int result = 0;
    pthread_mutex_lock(&client->lock);
    if (client->over) {
        result = error_set(error, client->end.status, "%s", client->end.text);
    } else if (outbox_add(&client->outbox, message) < 0) {
        result = error_set(error, STATUS_INTERNAL, "rank %u: no room for a message to the coordinator", client->rank);
    } else {
        client->awaited = awaited;
        if (!client->hailed && client->asks_at_hello) add_interrupted(client, "SIGUSR1", 0);
        client->hailed = true;
    }
    pthread_mutex_unlock(&client->lock);
    if (result == 0 && awaited != AWAIT_NOTHING && write(client->wake, &(uint64_t){1}, sizeof(uint64_t)) < 0) {
        result = error_set_errno(error, STATUS_INTERNAL, errno, "rank %u: waking the control thread", client->rank);
    }
    return result;
}

/* For an answer, or the end. The lock is held. */
static void wait_for_change(struct control_client *client)
{
    if (client->events.idle == NULL) {
        pthread_cond_wait(&client->changed, &client->lock);
        return;
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += IDLE_INTERVAL_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_cond_clockwait(&client->changed, &client->lock, CLOCK_MONOTONIC, &until) != ETIMEDOUT) return;
    pthread_mutex_unlock(&client->lock);
    client->events.idle(client->events.context);
    pthread_mutex_lock(&client->lock);
}

static int exchange(struct control_client *client, const worker_message *message, enum awaited awaited,
                    coordinator_message **answer, struct error *error)
{
    int result = post(client, message, awaited, error);
    if (result != 0) return result;
    pthread_mutex_lock(&client->lock);
    while (client->answer == NULL && !client->over) wait_for_change(client);
    *answer = client->answer;
    client->answer = NULL;
    if (*answer == NULL) result = error_set(error, client->end.status, "%s", client->end.text);
    pthread_mutex_unlock(&client->lock);
    return result;
}

/* Takes the body out of an answer and frees the rest. */
static void *unwrap(coordinator_message *answer)
{
    void *body = answer->welcome; /* a union of pointers */
    answer->body_case = GACC__V1__COORDINATOR_MESSAGE__BODY__NOT_SET;
    gacc__v1__coordinator_message__free_unpacked(answer, NULL);
    return body;
}

static int hello(struct control *control, const Gacc__V1__Hello *hello, Gacc__V1__Welcome **welcome,
                 struct error *error)
{
    worker_message message = GACC__V1__WORKER_MESSAGE__INIT;
    message.body_case = GACC__V1__WORKER_MESSAGE__BODY_HELLO;
    message.hello = (Gacc__V1__Hello *)(uintptr_t)hello;
    coordinator_message *answer;
    int result = exchange(client_of(control), &message, AWAIT_WELCOME, &answer, error);
    if (result != 0) return result;
    if (answer->body_case == GACC__V1__COORDINATOR_MESSAGE__BODY_WELCOME) {
        *welcome = unwrap(answer);
        return 0;
    }
    struct error why;
    farewell_error(&why, answer->farewell);
    gacc__v1__coordinator_message__free_unpacked(answer, NULL);
    return error_set(error, why.status, "%s", why.text);
}

static int report(struct control *control, const Gacc__V1__Report *report, Gacc__V1__Decision **decision,
                  struct error *error)
{
    worker_message message = GACC__V1__WORKER_MESSAGE__INIT;
    message.body_case = GACC__V1__WORKER_MESSAGE__BODY_REPORT;
    message.report = (Gacc__V1__Report *)(uintptr_t)report;
    coordinator_message *answer;
    int result = exchange(client_of(control), &message, AWAIT_DECISION, &answer, error);
    if (result == 0) *decision = unwrap(answer);
    return result;
}

/* Travels with the next report, or within STATE_INTERVAL_MS: nobody waits for it. */
static int step_done(struct control *control, const Gacc__V1__StepDone *done, struct error *error)
{
    worker_message message = GACC__V1__WORKER_MESSAGE__INIT;
    message.body_case = GACC__V1__WORKER_MESSAGE__BODY_STEP_DONE;
    message.step_done = (Gacc__V1__StepDone *)(uintptr_t)done;
    return post(client_of(control), &message, AWAIT_NOTHING, error);
}

static void state(struct control *control, uint64_t step, Gacc__V1__State state, uint32_t micro_batch)
{
    atomic_store_explicit(&client_of(control)->state, pack_state(step, state, micro_batch), memory_order_relaxed);
}

static int finished(struct control *control, const Gacc__V1__Finished *finished, Gacc__V1__Farewell **farewell,
                    struct error *error)
{
    worker_message message = GACC__V1__WORKER_MESSAGE__INIT;
    message.body_case = GACC__V1__WORKER_MESSAGE__BODY_FINISHED;
    message.finished = (Gacc__V1__Finished *)(uintptr_t)finished;
    coordinator_message *answer;
    int result = exchange(client_of(control), &message, AWAIT_FAREWELL, &answer, error);
    if (result == 0) *farewell = unwrap(answer);
    return result;
}

/* From the thread that writes a checkpoint, while another may wait for an answer. */
static int saved(struct control *control, const Gacc__V1__Saved *saved, struct error *error)
{
    struct control_client *client = client_of(control);
    worker_message message = GACC__V1__WORKER_MESSAGE__INIT;
    message.body_case = GACC__V1__WORKER_MESSAGE__BODY_SAVED;
    message.saved = (Gacc__V1__Saved *)(uintptr_t)saved;
    pthread_mutex_lock(&client->lock);
    bool posted = !client->over && outbox_add(&client->outbox, &message) == 0;
    pthread_mutex_unlock(&client->lock);
    wake(client);
    return posted
               ? 0
               : error_set(error, STATUS_INTERNAL, "rank %u: no room for a message to the coordinator", client->rank);
}

static int open_stream(struct control_client *client, const uint8_t secret[CONTROL_SECRET], struct error *error)
{
    int result = rpc_client_open(&client->connection, "coordinator", NULL, error);
    if (result != 0) return result;
    char text[4 * ((CONTROL_SECRET + 2) / 3) + 1];
    rpc_base64_encode(text, secret, CONTROL_SECRET);
    const char *const metadata[] = {"gacc-secret-bin", text, NULL};
    client->call = rpc_call_begin(client->connection, &join, client, metadata, 0);
    return client->call != NULL ? 0 : error_set(error, STATUS_INTERNAL, "no memory for the coordinator's stream");
}

static int start_thread(struct control_client *client, struct error *error)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = pthread_create(&client->thread, NULL, control_thread, client);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result == 0 ? 0 : error_set_errno(error, STATUS_INTERNAL, result, "cannot start the control thread");
}

static void release(struct control_client *client)
{
    if (client->answer != NULL) gacc__v1__coordinator_message__free_unpacked(client->answer, NULL);
    control_line_close(&client->line);
    if (client->wake >= 0) close(client->wake);
    free(client->outbox.bytes);
    free(client->sending.bytes);
    free(client->unwritten);
    pthread_cond_destroy(&client->changed);
    pthread_mutex_destroy(&client->lock);
    free(client);
}

int control_client_open(struct control **out, const struct control_address *to, uint32_t rank, double timeout_seconds,
                        const struct control_client_events *events, struct error *error)
{
    struct control_client *client = calloc(1, sizeof *client);
    if (client == NULL) return error_set(error, STATUS_INTERNAL, "no memory for the control client");
    client->control = (struct control){hello, report, step_done, state, saved, finished};
    client->events = *events;
    client->rank = rank;
    client->timeout_ms = (uint64_t)(1000 * timeout_seconds);
    client->heartbeat_ms = client->timeout_ms / 4 < HEARTBEAT_MS ? client->timeout_ms / 4 : HEARTBEAT_MS;
    pthread_mutex_init(&client->lock, NULL);
    pthread_cond_init(&client->changed, NULL);
    int result = control_connect(&client->line, to->addresses, to->fingerprint, timeout_seconds, error);
    client->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (result == 0 && client->wake < 0)
        result = error_set_errno(error, STATUS_INTERNAL, errno, "cannot make an eventfd");
    if (result == 0) result = open_stream(client, to->secret, error);
    if (result == 0) result = start_thread(client, error);
    if (result != 0) {
        client->taking_leave = true;
        rpc_close(client->connection);
        release(client);
        return result;
    }
    *out = &client->control;
    return 0;
}

bool control_client_prints(const struct control *control)
{
    struct control_client *client = client_of(control);
    pthread_mutex_lock(&client->lock);
    bool prints = client->prints;
    pthread_mutex_unlock(&client->lock);
    return prints;
}

bool control_client_ask(struct control *control, const char *signal)
{
    struct control_client *client = client_of(control);
    const bool saves = !strcmp(signal, "SIGUSR1");
    pthread_mutex_lock(&client->lock);
    client->asks_at_hello |= saves && !client->hailed;
    bool told = client->hailed ? add_interrupted(client, signal, saves ? 0 : 1) : saves;
    pthread_mutex_unlock(&client->lock);
    wake(client);
    return told;
}

bool control_client_interrupt(struct control *control, const char *signal, uint32_t times, const Gacc__V1__Hello *hello)
{
    struct control_client *client = client_of(control);
    worker_message message = GACC__V1__WORKER_MESSAGE__INIT;
    message.body_case = GACC__V1__WORKER_MESSAGE__BODY_HELLO;
    message.hello = (Gacc__V1__Hello *)(uintptr_t)hello;
    pthread_mutex_lock(&client->lock);
    bool posted = client->hailed ? add_interrupted(client, signal, times)
                                 : !client->over && outbox_add(&client->outbox, &message) == 0;
    client->hailed = true;
    pthread_mutex_unlock(&client->lock);
    wake(client);
    return posted;
}

void control_client_close(struct control *control)
{
    if (control == NULL) return;
    struct control_client *client = client_of(control);
    pthread_mutex_lock(&client->lock);
    client->closing = true;
    pthread_mutex_unlock(&client->lock);
    if (write(client->wake, &(uint64_t){1}, sizeof(uint64_t)) < 0) abort(); /* an eventfd below its maximum takes 1 */
    pthread_join(client->thread, NULL);
    release(client);
}
