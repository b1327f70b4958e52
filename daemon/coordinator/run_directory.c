#include "daemon/coordinator/run_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/coordinator/lock.h"
#include "daemon/hex.h"
#include "daemon/job/job.h"

static int path_in(char *path, const char *directory, const char *name, struct error *error)
{
    int length = snprintf(path, PATH_MAX, "%s/%s", directory, name);
    if (length < 0 || length >= PATH_MAX)
        return error_set(error, STATUS_IO, "job.output: the path is too long: %s", directory);
    return 0;
}

/* What would keep a job from writing its model when it has trained. */
static int check_final(const char *directory, const Gacc__V1__ModelSection *model, struct error *error)
{
    const char *longest =
        model->lora_rank ? "final/adapter/adapter_model.safetensors.tmp" : "final/model.safetensors.tmp";
    char path[PATH_MAX];
    struct stat facts;
    int status = path_in(path, directory, longest, error);
    if (!status) status = path_in(path, directory, "final", error);
    if (!status && !stat(path, &facts) && !S_ISDIR(facts.st_mode))
        status = error_set(error, STATUS_IO, "job.output: %s exists and is no directory", path);
    return status;
}

int run_directory_make(const char *path, struct error *error)
{
    char part[PATH_MAX];
    if (path_in(part, path, "", error)) return -STATUS_IO; /* ends in '/' */
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(part, 0777) && errno != EEXIST)
            return error_set_errno(error, STATUS_IO, errno, "job.output: cannot make the directory %s", part);
        *slash = '/';
    }
    struct stat facts;
    if (stat(path, &facts)) return error_set_errno(error, STATUS_IO, errno, "job.output: %s", path);
    if (!S_ISDIR(facts.st_mode)) return error_set(error, STATUS_IO, "job.output: %s exists and is no directory", path);
    return 0;
}

int run_file_write(const char *path, const char *text, size_t length, mode_t mode, struct error *error)
{
    char temporary[PATH_MAX + 8];
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    const int how = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = open(temporary, how, mode);
    /* What an earlier start left; whatever else has come there is neither followed nor taken. */
    if (fd < 0 && errno == EEXIST && !unlink(temporary)) fd = open(temporary, how, mode);
    if (fd < 0) return error_set_errno(error, STATUS_IO, errno, "%s", temporary);
    int number = 0;
    for (size_t done = 0; done < length && !number;) {
        ssize_t written = write(fd, text + done, length - done);
        if (written > 0)
            done += (size_t)written;
        else if (written == 0 || errno != EINTR)
            number = written == 0 ? ENOSPC : errno;
    }
    if (!number && fsync(fd)) number = errno;
    if (close(fd) && !number) number = errno;
    if (!number && rename(temporary, path)) number = errno;
    if (!number) return 0;
    unlink(temporary);
    return error_set_errno(error, STATUS_IO, number, "%s", path);
}

int run_path_sync(const char *path, int flags, struct error *error)
{
    const int fd = open(path, flags | O_RDONLY | O_CLOEXEC);
    if (fd < 0) return error_set_errno(error, STATUS_IO, errno, "%s", path);
    const int number = fsync(fd) && errno != EINVAL ? errno : 0; /* EINVAL: nothing to do on this file system */
    close(fd);
    return number ? error_set_errno(error, STATUS_IO, number, "%s", path) : 0;
}

int run_log_sync(const char *output, struct error *error)
{
    char path[PATH_MAX];
    const int status = path_in(path, output, "log.jsonl", error);
    return status ? status : run_path_sync(path, O_NONBLOCK, error);
}

static int write_json(const char *path, const json_t *object, mode_t mode, struct error *error)
{
    char *text = json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    if (!text) return error_set(error, STATUS_INTERNAL, "%s: out of memory", path);
    size_t length = strlen(text);
    text[length] = '\n'; /* in place of the zero */
    int status = run_file_write(path, text, length + 1, mode, error);
    free(text);
    return status;
}

static void hex(const ProtobufCBinaryData *bytes, char text[2 * 32 + 1])
{
    hex_write(bytes->data, bytes->len < 32 ? bytes->len : 32, text);
}

/* NULL where there is no such file, or none that holds JSON. A FIFO is not waited for. */
static json_t *read_json(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return NULL;
    json_t *object = json_loadfd(fd, 0, NULL);
    close(fd);
    return object;
}

static int judge_result(const Gacc__V1__JobSpec *job, enum run_left *left, struct error *error)
{
    char path[PATH_MAX], digest[65];
    if (path_in(path, job->job->output, "result.json", error)) return -STATUS_IO;
    json_t *result = read_json(path);
    const char *status = json_string_value(json_object_get(result, "status"));
    const char *of = json_string_value(json_object_get(result, "job_digest"));
    const bool is_done = status && !strcmp(status, "done");
    hex(&job->digest, digest);
    *left = !is_done ? RUN_UNDONE : of && !strcmp(of, digest) ? RUN_DONE : RUN_DONE_OTHER;
    json_decref(result);
    return 0;
}

static int open_and_lock_log(struct run_directory *directory, const char *path, struct error *error)
{
    directory->reader = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (directory->reader < 0) return error_set_errno(error, STATUS_IO, errno, "job.output: %s", path);
    if (!flock(directory->reader, LOCK_EX | LOCK_NB)) return 0;
    int number = errno;
    if (number != EWOULDBLOCK) return error_set_errno(error, STATUS_IO, number, "job.output: cannot lock %s", path);
    struct lock_holder holder;
    lock_read(directory->path, &holder);
    if (!holder.pid)
        return error_set(error, STATUS_UNAVAILABLE, "job.output: another job is writing in %s", directory->path);
    return error_set(error, STATUS_UNAVAILABLE, "job.output: another job (process %lld on %s) is writing in %s",
                     (long long)holder.pid, holder.host, directory->path);
}

int run_directory_lock(struct run_directory *directory, const Gacc__V1__JobSpec *job, enum run_left *left,
                       struct error *error)
{
    *directory = (struct run_directory){.path = job->job->output, .job = job, .reader = -1, .log = {.fd = -1}};
    char log[PATH_MAX];
    int status = run_directory_make(directory->path, error);
    if (!status) status = check_final(directory->path, job->model, error);
    if (!status) status = path_in(log, directory->path, "log.jsonl", error);
    if (!status) status = open_and_lock_log(directory, log, error);
    if (!status) status = judge_result(job, left, error);
    if (status) run_directory_close(directory);
    return status;
}

int run_directory_begin(struct run_directory *directory, struct error *error)
{
    char log[PATH_MAX], result[PATH_MAX];
    int status = path_in(log, directory->path, "log.jsonl", error);
    if (!status) status = path_in(result, directory->path, "result.json", error);
    if (!status && unlink(result) && errno != ENOENT)
        status = error_set_errno(error, STATUS_IO, errno, "job.output: cannot replace %s", result);
    if (!status) status = step_log_open(&directory->log, log, error);
    if (status) {
        run_directory_close(directory);
        return status;
    }
    directory->start = lseek(directory->reader, 0, SEEK_END);
    return 0;
}

void run_directory_close(struct run_directory *directory)
{
    if (directory->log.fd >= 0) step_log_close(&directory->log, NULL);
    if (directory->reader >= 0) close(directory->reader);
    directory->log.fd = directory->reader = -1;
}

int run_directory_write_job(const struct run_directory *directory, uint32_t ranks, struct error *error)
{
    char path[PATH_MAX], *text = NULL;
    size_t length = 0;
    if (path_in(path, directory->path, "job.yaml", error)) return -STATUS_IO;
    FILE *stream = open_memstream(&text, &length);
    if (!stream) return error_set_errno(error, STATUS_INTERNAL, errno, "%s", path);
    int printed = job_print(directory->job, ranks, stream);
    if (fclose(stream) || printed) {
        free(text);
        return error_set(error, STATUS_INTERNAL, "%s: the job cannot be printed", path);
    }
    int status = run_file_write(path, text, length, 0666, error);
    free(text);
    return status;
}

/* What a client has to know of the endpoint's TLS; null: there is none. NULL: out of memory. */
static json_t *tls_facts(const struct connection_facts *facts)
{
    uint8_t fingerprint[TLS_FINGERPRINT_BYTES];
    char text[2 * TLS_FINGERPRINT_BYTES + 1];
    if (!facts->tls) return json_null();
    tls_context_fingerprint(facts->tls, fingerprint);
    hex_write(fingerprint, sizeof fingerprint, text);
    return json_pack("{ss sb}", "fingerprint", text, "client_certificate", (int)facts->wants_certificate);
}

int run_directory_write_connection(const struct run_directory *directory, const char *path,
                                   const struct connection_facts *facts, struct error *error)
{
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    json_t *object =
        json_pack("{ss ss? ss? so si ss ss ss ss}", "endpoint", facts->endpoint, "token", facts->token, "read_token",
                  facts->read_token, "tls", tls_facts(facts), "pid", (int)facts->pid, "job_id", facts->job_id, "job",
                  directory->job->job->name, "host", host, "output", directory->path);
    if (!object) return error_set(error, STATUS_INTERNAL, "%s: out of memory, or a name that is no UTF-8", path);
    int status = write_json(path, object, 0600, error);
    json_decref(object);
    return status;
}

int run_result_write(const Gacc__V1__JobSpec *job, const struct end_record *end, struct error *error)
{
    char path[PATH_MAX], digest[65];
    if (path_in(path, job->job->output, "result.json", error)) return -STATUS_IO;
    hex(&job->digest, digest);
    char *text = result_text(end);
    json_t *object = text ? json_loads(text, 0, NULL) : NULL;
    free(text);
    if (!object || json_object_set_new(object, "job_digest", json_string(digest))) {
        json_decref(object);
        return error_set(error, STATUS_INTERNAL, "%s: out of memory", path);
    }
    int status = write_json(path, object, 0666, error);
    static const char *const room[] = {"connection.json", LOCK_NAME}; /* on a full disk they make some */
    for (size_t i = 0; i < sizeof room / sizeof *room && status; i++) {
        char other[PATH_MAX];
        if (!path_in(other, job->job->output, room[i], NULL) && !unlink(other))
            status = write_json(path, object, 0666, error);
    }
    json_decref(object);
    return status;
}

void run_result_last_counters(const Gacc__V1__JobSpec *job, struct step_counters *counters)
{
    *counters = (struct step_counters){0};
    char path[PATH_MAX], tail[65537];
    if (path_in(path, job->job->output, "log.jsonl", NULL)) return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    off_t size = lseek(fd, 0, SEEK_END), from = size > 65536 ? size - 65536 : 0;
    ssize_t length = pread(fd, tail, sizeof tail - 1, from);
    close(fd);
    if (length <= 0) return;
    tail[length] = '\0';
    for (char *line = tail, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        json_t *record = json_loads(line, 0, NULL);
        const char *type = json_string_value(json_object_get(record, "type"));
        const struct {
            const char *key;
            uint64_t *counter;
        } keys[] = {{"step", &counters->step},
                    {"optimizer_steps", &counters->optimizer_steps},
                    {"skipped_steps", &counters->skipped_steps},
                    {"empty_steps", &counters->empty_steps},
                    {"scheduler_steps", &counters->scheduler_steps},
                    {"tokens_seen", &counters->tokens_seen}};
        const json_t *holder = record;
        if (type && !strcmp(type, "header")) {
            *counters = (struct step_counters){0};
            holder = json_object_get(record, "resumed");
        }
        if (type && (!strcmp(type, "step") || !strcmp(type, "header")))
            for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
                *keys[i].counter = (uint64_t)json_integer_value(json_object_get(holder, keys[i].key));
        json_decref(record);
    }
}
