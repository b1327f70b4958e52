#include "daemon/verify/receipt.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/coordinator/run_directory.h"
#include "daemon/hex.h"
#include "daemon/observe/json_writer.h"
#include "daemon/verify/report.h"

#define DIGEST_BYTES 32
#define DEVICE_MAX 128

/* What a receipt is for. */
struct subject {
    char job[2 * DIGEST_BYTES + 1], program[2 * DIGEST_BYTES + 1]; /* SHA-256 in hexadecimal */
    char device[DEVICE_MAX];
};

/* Of this program's file as it lies on disk. */
static int digest_program(char *text, struct error *error)
{
    unsigned char buffer[65536], digest[EVP_MAX_MD_SIZE];
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), number = fd < 0 ? errno : 0;
    bool fine = context && EVP_DigestInit_ex(context, EVP_sha256(), NULL);
    for (ssize_t got = 1; fine && !number && got;) {
        got = read(fd, buffer, sizeof buffer);
        if (got < 0) number = errno;
        if (got > 0) fine = EVP_DigestUpdate(context, buffer, (size_t)got);
    }
    fine = fine && EVP_DigestFinal_ex(context, digest, NULL);
    if (fd >= 0) close(fd);
    EVP_MD_CTX_free(context);
    if (number) return error_set_errno(error, STATUS_INTERNAL, number, "verify: cannot read the program's own file");
    if (!fine) return error_set(error, STATUS_INTERNAL, "verify: cannot form the program's digest");
    hex_write(digest, DIGEST_BYTES, text);
    return 0;
}

/* "cuda: " and the GPU's model, or "cpu: " and what the processor calls itself. */
static void name_device(const char *device, char *text)
{
    char line[256];
    snprintf(text, DEVICE_MAX, device ? "cuda: %s" : "cpu", device);
    if (device) return;
    FILE *facts = fopen("/proc/cpuinfo", "re");
    while (facts && fgets(line, sizeof line, facts)) {
        const char *colon = strncmp(line, "model name", 10) ? NULL : strchr(line, ':');
        if (!colon) continue;
        snprintf(text, DEVICE_MAX, "cpu:%.*s", (int)strcspn(colon + 1, "\n"), colon + 1);
        break;
    }
    if (facts) fclose(facts);
}

static int subject_of(const Gacc__V1__JobSpec *job, const char *device, struct subject *subject, struct error *error)
{
    hex_write(job->digest.data, job->digest.len < DIGEST_BYTES ? job->digest.len : DIGEST_BYTES, subject->job);
    name_device(device, subject->device);
    return digest_program(subject->program, error);
}

static int path_of(const Gacc__V1__JobSpec *job, char *path, struct error *error)
{
    int length = snprintf(path, PATH_MAX, "%s/verify.json", job->job->output);
    if (length < PATH_MAX - 8) return 0; /* the temporary name is longer */
    return error_set(error, STATUS_IO, "job.output: the path is too long: %s", job->job->output);
}

/* --- writing ------------------------------------------------------------------------------------------------- */

static char *compose(const struct subject *subject, uint32_t ranks, uint32_t sequences,
                     const struct verification *verification, size_t *length)
{
    struct json_writer json;
    char *text, now[32];
    time_t seconds = time(NULL);
    struct tm utc;
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    if (json_write_open(&json, &text, length)) return NULL;
    json_write_object(&json, NULL);
    json_write_string(&json, "gaccd", GACC_VERSION);
    json_write_string(&json, "job_digest", subject->job);
    json_write_string(&json, "program_digest", subject->program);
    json_write_string(&json, "device", subject->device);
    json_write_unsigned(&json, "ranks", ranks);
    json_write_unsigned(&json, "sequences", sequences);
    json_write_string(&json, "time", now);
    report_members(&json, verification);
    json_write_object_end(&json);
    fputc('\n', json.to);
    return json_write_close(&json, &text) ? text : NULL;
}

int receipt_write(const Gacc__V1__JobSpec *job, const char *device, uint32_t ranks, uint32_t sequences,
                  const struct verification *verification, char *path, struct error *error)
{
    struct subject subject;
    size_t length;
    int status = subject_of(job, device, &subject, error);
    if (!status) status = path_of(job, path, error);
    if (!status) status = run_directory_make(job->job->output, error);
    if (status) return status;
    char *text = compose(&subject, ranks, sequences, verification, &length);
    if (!text) return error_set(error, STATUS_INTERNAL, "out of memory for the receipt");
    status = run_file_write(path, text, length, 0666, error);
    free(text);
    return status;
}

/* --- requiring ----------------------------------------------------------------------------------------------- */

static bool says(const json_t *receipt, const char *key, const char *wanted)
{
    const char *text = json_string_value(json_object_get(receipt, key));
    return text && !strcmp(text, wanted);
}

static bool is_for_a_gpu(const json_t *receipt)
{
    const char *text = json_string_value(json_object_get(receipt, "device"));
    return text && !strncmp(text, "cuda: ", 6);
}

/* NULL: it is what is asked for. */
static const char *objection(const json_t *receipt, const struct subject *subject, bool any_device)
{
    if (!json_is_object(receipt)) return "is no receipt of gaccd verify";
    if (!says(receipt, "job_digest", subject->job)) return "is the receipt of another job";
    if (!says(receipt, "program_digest", subject->program)) return "is the receipt of another gaccd program";
    if (!says(receipt, "device", subject->device) && !(any_device && is_for_a_gpu(receipt)))
        return "is the receipt of another device";
    if (!json_is_true(json_object_get(receipt, "pass"))) return "says that the verification failed";
    return NULL;
}

int receipt_require(const Gacc__V1__JobSpec *job, const char *device, struct error *error)
{
    const bool any_device = device && !strcmp(device, RECEIPT_ANY_DEVICE);
    struct subject subject;
    char path[PATH_MAX];
    int status = subject_of(job, any_device ? NULL : device, &subject, error);
    if (!status) status = path_of(job, path, error);
    if (status) return status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_set(error, STATUS_NUMERICS, "verify: required, and %s: %s; gaccd verify writes it", path,
                         errno == ENOENT ? "there is no receipt" : strerror(errno));
    json_t *receipt = json_loadfd(fd, 0, NULL);
    close(fd);
    const char *why = objection(receipt, &subject, any_device);
    json_decref(receipt);
    return why ? error_set(error, STATUS_NUMERICS, "verify: required, and %s %s; gaccd verify writes a new one", path,
                           why)
               : 0;
}
