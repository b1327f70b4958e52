/* log.jsonl: strict JSON, fields and their order as documented, lines whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/observe/json_writer.h"
#include "daemon/observe/step_log.h"
#include "tests/unit/histories.h"

#define NAN64 ((double)NAN)

static json_t *parsed(const char *line)
{
    json_error_t error;
    assert_non_null(line);
    assert_null(strchr(line, '\n'));
    json_t *json = json_loads(line, JSON_REJECT_DUPLICATES, &error);
    if (!json) fail_msg("%s: %s", error.text, line);
    return json;
}

static void expect_line(char *line, const char *wanted)
{
    json_decref(parsed(line));
    assert_string_equal(line, wanted);
    free(line);
}

static const uint32_t shares[] = {4, 3};

static struct step_record applied(void)
{
    return (struct step_record){
        .counters = {.step = 12, .optimizer_steps = 11, .skipped_steps = 1, .scheduler_steps = 11, .tokens_seen = 6144},
        .verdict = VERDICT_IS_APPLY,
        .has_loss = true,
        .loss = 2.5,
        .weight = 512,
        .micro_batches = 7,
        .tokens = 512,
        .lr = 3e-4,
        .has_scaler = true,
        .loss_scale = 65536,
        .loss_scale_next = 131072,
        .growth_tracker = 0,
        .grad_norm_scaled = 32768,
        .grad_norm = 0.5,
        .grad_norm_clipped = 0.25,
        .clip_coefficient = 0.5,
        .reduce_scatters = 1,
        .all_gathers = 1,
        .reduce_scatter_bytes = 4000,
        .all_gather_bytes = 2000,
        .accumulate = shares,
        .ranks = 2,
        .seconds = {0.5, 0.0625, 0.25, 0.125, 0.001, 0.03, 0.04, 0.51},
    };
}

#define STEP_HEAD                                                                                  \
    "{\"type\":\"step\",\"step\":12,\"optimizer_steps\":11,\"skipped_steps\":1,\"empty_steps\":0," \
    "\"scheduler_steps\":11,"
#define STEP_TAIL                                                                                                     \
    "\"bytes\":{\"reduce_scatter\":4000,\"all_gather\":2000},\"accumulate\":[4,3],"                                   \
    "\"seconds\":{\"step\":0.5,\"data\":0.0625,\"compute\":0.25,\"reduce\":0.125,\"decision\":0.001,\"update\":0.03," \
    "\"gather\":0.04,\"since_last_step\":0.51}}"

static void an_applied_step_has_every_field_in_the_documented_order(void **unused)
{
    (void)unused;
    struct step_record record = applied();
    expect_line(step_line(&record), STEP_HEAD
                "\"verdict\":\"apply\",\"reason\":null,\"retries\":0,\"nonfinite\":null,\"loss\":2.5,\"weight\":512.0,"
                "\"micro_batches\":7,\"tokens\":512,\"tokens_seen\":6144,\"lr\":0.0003,\"loss_scale\":65536.0,"
                "\"loss_scale_next\":131072.0,\"growth_tracker\":0,\"grad_norm_scaled\":32768.0,"
                "\"grad_norm\":0.5,\"grad_norm_clipped\":0.25,\"clip_coefficient\":0.5,"
                "\"collectives\":{\"reduce_scatter\":1,\"all_gather\":1,\"control\":0}," STEP_TAIL);
}

/* Cases 07-6, 26-3. */
static void a_skip_has_no_norms_and_names_the_culprit(void **unused)
{
    (void)unused;
    struct step_record record = applied();
    Gacc__V1__SequenceRef sequence = GACC__V1__SEQUENCE_REF__INIT, *sequences[] = {&sequence};
    Gacc__V1__Blame blame = GACC__V1__BLAME__INIT;
    sequence.index = 41;
    sequence.file = (char *)"a \"b\".bin";
    sequence.offset = 5000000000;
    blame.tensor = (char *)"h.3.mlp.c_fc.weight";
    blame.has_micro_batch = true;
    blame.micro_batch = 1;
    blame.n_sequences = 1;
    blame.sequences = sequences;
    record.verdict = VERDICT_IS_SKIP;
    record.reason = "overflow";
    record.blame = &blame;
    record.blame_rank = 2;
    record.loss = (double)INFINITY;
    record.loss_scale_next = 32768;
    record.all_gathers = 0;
    record.all_gather_bytes = 2000;
    expect_line(step_line(&record), STEP_HEAD
                "\"verdict\":\"skip\",\"reason\":\"overflow\",\"retries\":0,\"nonfinite\":{\"rank\":2,"
                "\"tensor\":\"h.3.mlp.c_fc.weight\",\"micro_batch\":1,\"sequences\":[{\"index\":41,"
                "\"file\":\"a \\\"b\\\".bin\",\"offset\":5000000000}]},\"loss\":null,\"loss_nonfinite\":1,"
                "\"weight\":512.0,\"micro_batches\":7,\"tokens\":512,\"tokens_seen\":6144,\"lr\":0.0003,"
                "\"loss_scale\":65536.0,\"loss_scale_next\":32768.0,\"growth_tracker\":0,\"grad_norm_scaled\":null,"
                "\"grad_norm\":null,\"grad_norm_clipped\":null,\"clip_coefficient\":null,"
                "\"collectives\":{\"reduce_scatter\":1,\"all_gather\":0,\"control\":0}," STEP_TAIL);
}

static void without_a_scaler_scale_and_tracker_are_null(void **unused)
{
    (void)unused;
    struct step_record record = applied();
    record.has_scaler = false;
    char *line = step_line(&record);
    json_t *json = parsed(line);
    assert_true(json_is_null(json_object_get(json, "loss_scale")));
    assert_true(json_is_null(json_object_get(json, "loss_scale_next")));
    assert_true(json_is_null(json_object_get(json, "growth_tracker")));
    assert_true(json_is_real(json_object_get(json, "grad_norm_scaled")));
    json_decref(json);
    free(line);
}

/* Case 25-6: NaN stays visible; an empty step has no loss, which is something else. */
static void a_non_finite_loss_is_counted_and_a_missing_one_is_not(void **unused)
{
    (void)unused;
    struct step_record record = applied();
    record.loss = NAN64;
    char *line = step_line(&record);
    json_t *json = parsed(line);
    assert_true(json_is_null(json_object_get(json, "loss")));
    assert_int_equal(json_integer_value(json_object_get(json, "loss_nonfinite")), 1);
    assert_string_equal(json_string_value(json_object_get(json, "verdict")), "apply");
    json_decref(json);
    free(line);

    record.verdict = VERDICT_IS_EMPTY;
    record.has_loss = false;
    line = step_line(&record);
    json = parsed(line);
    assert_true(json_is_null(json_object_get(json, "loss")));
    assert_null(json_object_get(json, "loss_nonfinite"));
    json_decref(json);
    free(line);
}

static void a_culprit_that_is_not_fully_known_is_null_where_unknown(void **unused)
{
    (void)unused;
    struct step_record record = applied();
    Gacc__V1__Blame blame = GACC__V1__BLAME__INIT;
    blame.tensor = (char *)"weight";
    record.verdict = VERDICT_IS_SKIP;
    record.blame = &blame;
    char *line = step_line(&record);
    assert_non_null(
        strstr(line, "\"nonfinite\":{\"rank\":0,\"tensor\":\"weight\",\"micro_batch\":null,\"sequences\":[]}"));
    free(line);
}

/* One frozen, one with a quarter of the optimizer's rate. */
static void two_groups(Gacc__V1__TensorGroup *groups[2])
{
    static Gacc__V1__TensorGroup each[2];
    static char biases[] = "*.bias";
    for (size_t i = 0; i < 2; i++) gacc__v1__tensor_group__init(groups[i] = &each[i]);
    each[0].match = biases;
    each[0].tensors = 3, each[0].parameters = 345, each[0].frozen = true;
    each[1].tensors = 4, each[1].parameters = 12000, each[1].lr_ratio = 0.25, each[1].weight_decay = 0.1;
}

static void several_groups_have_a_rate_each(void **unused)
{
    (void)unused;
    Gacc__V1__TensorGroup *groups[2];
    two_groups(groups);
    struct step_record record = {.lr = 0.5, .groups = groups, .group_count = 2, .accumulate = shares, .ranks = 2};
    char *line = step_line(&record);
    assert_non_null(strstr(line, "\"lr\":0.5,\"lr_groups\":[null,0.125],\"loss_scale\""));
    free(line);
    groups[0]->frozen = false; /* for the first three steps only */
    groups[0]->frozen_until = 3;
    groups[0]->lr_ratio = 2;
    record.counters.optimizer_steps = 3;
    record.verdict = VERDICT_IS_APPLY; /* the third one */
    line = step_line(&record);
    assert_non_null(strstr(line, "\"lr_groups\":[null,0.125]"));
    free(line);
    record.verdict = VERDICT_IS_SKIP; /* of the fourth */
    line = step_line(&record);
    assert_non_null(strstr(line, "\"lr_groups\":[1.0,0.125]"));
    free(line);
    record.group_count = 1;
    line = step_line(&record);
    assert_null(strstr(line, "lr_groups"));
    free(line);
}

static void header_eval_event_end_and_result_say_what_they_hold(void **unused)
{
    (void)unused;
    static const uint8_t digest[] = {0x00, 0xAB, 0xFF};
    static char openblas[] = "openblas 0.3.21", *versions[] = {openblas};
    Gacc__V1__Memory memory = GACC__V1__MEMORY__INIT;
    memory.parameters = 1, memory.gradients = 2, memory.shard = 3, memory.moments = 4, memory.activations = 5,
    memory.data = 6;
    Gacc__V1__TensorGroup *groups[2];
    two_groups(groups);
    struct header_record header = {.job = "tiny",
                                   .job_digest = digest,
                                   .job_digest_length = sizeof digest,
                                   .effective_batch = 14,
                                   .micro_batch = 2,
                                   .ranks = 2,
                                   .accumulate = shares,
                                   .tokens_per_step = 896,
                                   .total_steps = 100,
                                   .train_sequences = 1000,
                                   .validation_sequences = 10,
                                   .parameters = 12345,
                                   .trained = 12000,
                                   .groups = groups,
                                   .group_count = 2,
                                   .lr = 0.5,
                                   .device = "cpu",
                                   .memory = &memory,
                                   .versions = versions,
                                   .version_count = 1};
    expect_line(
        header_line(&header),
        "{\"type\":\"header\",\"job\":\"tiny\",\"job_digest\":\"00abff\",\"effective_batch\":14,\"micro_batch\":2,"
        "\"accumulate\":[4,3],\"ranks\":2,\"tokens_per_step\":896,\"total_steps\":100,\"train_sequences\":1000,"
        "\"validation_sequences\":10,\"parameters\":12345,\"trained\":12000,\"groups\":["
        "{\"match\":\"*.bias\",\"tensors\":3,\"parameters\":345,\"lr\":null,\"weight_decay\":null,\"frozen\":true},"
        "{\"match\":null,\"tensors\":4,\"parameters\":12000,\"lr\":0.125,\"weight_decay\":0.1,\"frozen\":false}],"
        "\"device\":\"cpu\","
        "\"memory\":{\"parameters\":1,\"gradients\":2,\"shard\":3,\"moments\":4,\"activations\":5,\"data\":6,"
        "\"window\":0},"
        "\"versions\":[\"openblas 0.3.21\"],"
        "\"resumed_from\":null}");
    const struct step_counters from = {
        .step = 7, .optimizer_steps = 5, .skipped_steps = 2, .scheduler_steps = 5, .tokens_seen = 70};
    const struct header_change changes[] = {{"batch.micro", "2", "1", false}, {"optimizer.lr", "1", "2", true}};
    header.resumed_from = "run/checkpoints/step-00000005";
    header.resumed = &from;
    header.changes = changes;
    header.change_count = 2;
    struct job_setting set = {(char *)"optimizer.lr", (char *)"0.5"};
    const struct job_settings settings = {&set, 1};
    header.settings = &settings;
    char *resumed = header_line(&header);
    assert_string_equal(
        strstr(resumed, "\"resumed_from\""),
        "\"resumed_from\":\"run/checkpoints/step-00000005\",\"resumed\":{\"step\":7,\"optimizer_steps\":5,"
        "\"skipped_steps\":2,\"empty_steps\":0,\"scheduler_steps\":5,\"tokens_seen\":70},\"changes\":["
        "{\"key\":\"batch.micro\",\"was\":\"2\",\"now\":\"1\"},"
        "{\"key\":\"optimizer.lr\",\"was\":\"1\",\"now\":\"1\",\"not\":\"2\"}],"
        "\"settings\":[{\"path\":\"optimizer.lr\",\"value\":\"0.5\"}]}");
    free(resumed);
    const struct checkpoint_record checkpoint = {
        .step = 7, .optimizer_steps = 5, .name = "step-00000005", .bytes = 99, .seconds = {0.5, 1.5, 0.25}};
    expect_line(checkpoint_line(&checkpoint),
                "{\"type\":\"checkpoint\",\"step\":7,\"optimizer_steps\":5,\"name\":\"step-00000005\",\"bytes\":99,"
                "\"seconds\":{\"copy\":0.5,\"write\":1.5,\"commit\":0.25}}");
    struct eval_record eval = {
        .step = 12, .optimizer_steps = 11, .loss = 1.5, .weight = 10, .sequences = 10, .seconds = 0.25};
    expect_line(eval_line(&eval), "{\"type\":\"eval\",\"step\":12,\"optimizer_steps\":11,\"loss\":1.5,\"weight\":10.0,"
                                  "\"sequences\":10,\"seconds\":0.25}");
    const struct control_change change = {"optimizer.clip_norm", "1", NULL};
    struct control_record control = {.method = "SetParameters",
                                     .by = "uid 1 (jo), pid 2",
                                     .role = "control",
                                     .at = 1.5,
                                     .step = 4,
                                     .optimizer_steps = 3,
                                     .changes = &change,
                                     .change_count = 1};
    expect_line(control_line(&control),
                "{\"type\":\"control\",\"method\":\"SetParameters\",\"by\":\"uid 1 (jo), pid 2\",\"role\":\"control\","
                "\"at\":1.5,\"step\":4,\"optimizer_steps\":3,\"accepted\":true,\"reason\":null,"
                "\"changes\":[{\"key\":\"optimizer.clip_norm\",\"was\":\"1\",\"now\":null}]}");
    control.refusal = "no";
    control.change_count = 0;
    expect_line(control_line(&control),
                "{\"type\":\"control\",\"method\":\"SetParameters\",\"by\":\"uid 1 (jo), pid 2\",\"role\":\"control\","
                "\"at\":1.5,\"step\":4,\"optimizer_steps\":3,\"accepted\":false,\"reason\":\"no\",\"changes\":[]}");
    struct event_record event = {.step = 3, .event = "skip_rate", .text = "too many"};
    expect_line(event_line(&event), "{\"type\":\"event\",\"step\":3,\"event\":\"skip_rate\",\"text\":\"too many\"}");
    struct end_record end = {.exit = STATUS_NUMERICS,
                             .reason = "step 3: not finite",
                             .counters = {.step = 3, .skipped_steps = 3, .tokens_seen = 12},
                             .total_steps = 5,
                             .has_loss = true,
                             .loss = NAN64,
                             .seconds = 1};
#define RESULT                                                                                                        \
    "\"status\":\"failed\",\"exit\":76,\"reason\":\"step 3: not finite\",\"step\":3,\"optimizer_steps\":0,"           \
    "\"skipped_steps\":3,\"empty_steps\":0,\"scheduler_steps\":0,\"total_steps\":5,\"tokens_seen\":12,\"loss\":null," \
    "\"loss_nonfinite\":1,\"validation_loss\":null,\"seconds\":1.0,\"checkpoint\":null}"
    expect_line(end_line(&end), "{\"type\":\"end\"," RESULT);
    expect_line(result_text(&end), "{" RESULT);
    end.exit = 0;
    char *line = result_text(&end);
    assert_non_null(strstr(line, "\"status\":\"done\",\"exit\":0,"));
    free(line);
}

/* One number, as it stands in the text. */
static void number_text(double value, char text[64])
{
    struct json_writer json;
    char *out;
    size_t length;
    assert_int_equal(json_write_open(&json, &out, &length), 0);
    json_write_array(&json, NULL);
    json_write_double(&json, NULL, value);
    json_write_array_end(&json);
    assert_true(json_write_close(&json, &out));
    assert_true(length >= 2 && length < 64);
    memcpy(text, out + 1, length - 2);
    text[length - 2] = '\0';
    free(out);
}

static void doubles_are_as_short_as_they_can_be(void **unused)
{
    (void)unused;
    static const struct {
        double value;
        const char *text;
    } known[] = {{0, "0.0"},
                 {-0.0, "-0.0"},
                 {1, "1.0"},
                 {0.1, "0.1"},
                 {1.0 / 3, "0.3333333333333333"},
                 {3e-4, "0.0003"},
                 {1e100, "1e+100"},
                 {5e-324, "5e-324"},
                 {1e22, "1e+22"},
                 {0x1p127, "1.7014118346046923e+38"},
                 {9007199254740992, "9007199254740992.0"}};
    char text[64];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        number_text(known[i].value, text);
        assert_string_equal(text, known[i].text);
    }
}

static void any_double_reads_back_as_the_same_bits_from_the_fewest_digits(void **unused)
{
    (void)unused;
    uint64_t random = 8;
    for (int history = 0; history < HISTORIES; history++) {
        union {
            uint64_t bits;
            double value;
        } wanted = {.bits = random_bits(&random)}, got;
        if (history % 10 == 0) wanted.bits &= ~(UINT64_C(0x7FF) << 52); /* subnormal */
        if (history % 10 == 1) wanted.value = (double)(float)wanted.value;
        char text[64], shorter[64];
        number_text(wanted.value, text);
        if (!isfinite(wanted.value)) {
            assert_string_equal(text, "null");
            continue;
        }
        got.value = strtod(text, NULL);
        assert_true(got.bits == wanted.bits);
        int digits = 0;
        for (const char *c = text; *c && *c != 'e'; c++) digits += *c >= '0' && *c <= '9' && (digits > 0 || *c != '0');
        snprintf(shorter, sizeof shorter, "%.*e", digits > 2 ? digits - 2 : 0, wanted.value);
        if (digits > 1 && !strstr(text, ".0")) assert_true(strtod(shorter, NULL) != wanted.value);
    }
}

static void any_bytes_make_a_valid_string(void **unused)
{
    (void)unused;
    struct event_record event = {.event = "x",
                                 .text = "tab\t quote\" back\\ nul-free \x01 \xC3\xA9 \xFF \xC0\x80 \xED\xA0\x80"};
    char *line = event_line(&event);
    assert_non_null(strstr(line, "tab\\u0009 quote\\\" back\\\\ nul-free \\u0001 \xC3\xA9 \\ufffd \\ufffd\\ufffd "
                                 "\\ufffd\\ufffd\\ufffd\""));
    json_decref(parsed(line));
    free(line);
    uint64_t random = 9;
    for (int history = 0; history < HISTORIES; history++) {
        char text[17];
        for (size_t i = 0; i < 16; i++) {
            uint64_t byte =
                random_chance(&random, 0.5) ? random_between(&random, 0x80, 0xFF) : random_between(&random, 1, 0xFF);
            text[i] = (char)(unsigned char)byte;
        }
        text[16] = '\0';
        event.text = text;
        line = event_line(&event);
        json_decref(parsed(line));
        free(line);
    }
}

static char path[] = "/tmp/step_log_test.XXXXXX";

static int fresh_file(void **unused)
{
    (void)unused;
    strcpy(path + strlen(path) - 6, "XXXXXX");
    int fd = mkstemp(path);
    if (fd < 0) return -1;
    return close(fd);
}

static int remove_file(void **unused)
{
    (void)unused;
    return unlink(path);
}

static void expect_file(const char *wanted)
{
    char got[256] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t length = fread(got, 1, sizeof got - 1, file);
    got[length] = '\0';
    fclose(file);
    assert_string_equal(got, wanted);
}

static void put(const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void open_log(struct step_log *log)
{
    struct error error = {0};
    if (step_log_open(log, path, &error)) fail_msg("%s", error.text);
}

static void lines_are_appended_to_what_is_there(void **unused)
{
    (void)unused;
    struct step_log log, other;
    struct error error;
    put("{\"old\":1}\n");
    open_log(&log);
    open_log(&other);
    assert_true(fcntl(log.fd, F_GETFL) & O_APPEND);
    assert_int_equal(step_log_append(&log, "{\"a\":1}", &error), 0);
    assert_int_equal(step_log_append(&other, "{\"b\":2}", &error), 0);
    assert_int_equal(step_log_append(&log, "{\"c\":3}", &error), 0);
    assert_int_equal(step_log_close(&log, &error), 0);
    assert_int_equal(step_log_close(&other, &error), 0);
    expect_file("{\"old\":1}\n{\"a\":1}\n{\"b\":2}\n{\"c\":3}\n");
}

static void a_line_cut_by_a_crash_is_removed_on_opening(void **unused)
{
    (void)unused;
    struct step_log log;
    struct error error;
    put("{\"old\":1}\n{\"cut\":");
    open_log(&log);
    assert_int_equal(step_log_append(&log, "{\"a\":1}", &error), 0);
    step_log_close(&log, &error);
    expect_file("{\"old\":1}\n{\"a\":1}\n");

    char *long_line = calloc(1, 10001);
    assert_non_null(long_line);
    memset(long_line, 'x', 10000);
    put(long_line);
    free(long_line);
    open_log(&log);
    step_log_close(&log, &error);
    expect_file("");
}

/* A disk on which the file may have so many bytes. */
static void allow(rlim_t bytes)
{
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    setrlimit(RLIMIT_FSIZE, &limit);
}

static void lines_without_room_wait_whole_and_in_order(void **unused)
{
    (void)unused;
    struct step_log log;
    struct error error;
    open_log(&log);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(step_log_append(&log, "{\"a\":1}", &error), 0);
    allow(12);
    assert_int_equal(step_log_append(&log, "{\"b\":2222222222}", &error), -STATUS_IO);
    assert_non_null(strstr(error.text, path));
    assert_int_equal(step_log_append(&log, "{\"c\":3}", &error), -STATUS_IO);
    expect_file("{\"a\":1}\n"); /* what was cut short is taken back */
    allow(28);
    assert_int_equal(step_log_catch_up(&log, &error), -STATUS_IO);
    expect_file("{\"a\":1}\n{\"b\":2222222222}\n");
    allow(RLIM_INFINITY);
    assert_int_equal(step_log_append(&log, "{\"d\":4}", &error), 0);
    assert_int_equal(step_log_catch_up(&log, &error), 0);
    signal(SIGXFSZ, handler);
    assert_false(log.lost);
    step_log_close(&log, &error);
    expect_file("{\"a\":1}\n{\"b\":2222222222}\n{\"c\":3}\n{\"d\":4}\n");
}

static void so_many_lines_wait_and_no_more(void **unused)
{
    (void)unused;
    struct step_log log;
    struct error error = {0};
    char line[65536] = "";
    memset(line, 'x', sizeof line - 1);
    open_log(&log);
    assert_int_equal(step_log_append(&log, NULL, &error), -STATUS_INTERNAL);
    assert_true(log.lost);
    step_log_close(&log, &error);
    open_log(&log);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    allow(1);
    size_t waiting = 0;
    while (step_log_append(&log, line, &error) == -STATUS_IO && !log.lost) waiting++;
    assert_int_equal(waiting, STEP_LOG_WAITING_MAX / sizeof line + 1);
    allow(RLIM_INFINITY);
    signal(SIGXFSZ, handler);
    assert_int_equal(step_log_catch_up(&log, &error), 0);
    assert_int_equal(lseek(log.fd, 0, SEEK_END), (off_t)(waiting * sizeof line));
    step_log_close(&log, &error);
}

static void what_cannot_be_opened_or_written_is_named(void **unused)
{
    (void)unused;
    struct step_log log;
    struct error error = {0};
    assert_int_equal(step_log_open(&log, "/nonexistent/log.jsonl", &error), -STATUS_IO);
    assert_string_equal(error.text, "/nonexistent/log.jsonl: cannot open: No such file or directory");
    if (access("/dev/full", W_OK) == 0) {
        assert_int_equal(step_log_open(&log, "/dev/full", &error), 0);
        assert_int_equal(step_log_append(&log, "{}", &error), -STATUS_IO);
        assert_string_equal(error.text, "/dev/full: cannot write: No space left on device");
        step_log_close(&log, &error);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_applied_step_has_every_field_in_the_documented_order),
        cmocka_unit_test(a_skip_has_no_norms_and_names_the_culprit),
        cmocka_unit_test(without_a_scaler_scale_and_tracker_are_null),
        cmocka_unit_test(a_non_finite_loss_is_counted_and_a_missing_one_is_not),
        cmocka_unit_test(a_culprit_that_is_not_fully_known_is_null_where_unknown),
        cmocka_unit_test(several_groups_have_a_rate_each),
        cmocka_unit_test(header_eval_event_end_and_result_say_what_they_hold),
        cmocka_unit_test(doubles_are_as_short_as_they_can_be),
        cmocka_unit_test(any_double_reads_back_as_the_same_bits_from_the_fewest_digits),
        cmocka_unit_test(any_bytes_make_a_valid_string),
        cmocka_unit_test_setup_teardown(lines_are_appended_to_what_is_there, fresh_file, remove_file),
        cmocka_unit_test_setup_teardown(a_line_cut_by_a_crash_is_removed_on_opening, fresh_file, remove_file),
        cmocka_unit_test_setup_teardown(lines_without_room_wait_whole_and_in_order, fresh_file, remove_file),
        cmocka_unit_test_setup_teardown(so_many_lines_wait_and_no_more, fresh_file, remove_file),
        cmocka_unit_test(what_cannot_be_opened_or_written_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
