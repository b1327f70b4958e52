/* The job file: what is read, what is refused in which words, what --set does. The table of keys itself:
 * job_keys_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/job/job.h"
#include "scratch.h"

static const char gpt[] = "job:\n"             /* 1 */
                          "  steps: 100\n"     /* 2 */
                          "model:\n"           /* 3 */
                          "  type: gpt\n"      /* 4 */
                          "  layers: 2\n"      /* 5 */
                          "  heads: 4\n"       /* 6 */
                          "  width: 32\n"      /* 7 */
                          "  context: 8\n"     /* 8 */
                          "data:\n"            /* 9 */
                          "  format: bytes\n"  /* 10 */
                          "  train: ${TEXT}\n" /* 11 */
                          "batch:\n"           /* 12 */
                          "  global: 12\n"     /* 13 */
                          "  micro: 3\n"       /* 14 */
                          "optimizer:\n"       /* 15 */
                          "  lr: 3e-4\n";      /* 16 */

static const char tape[] = "job: {steps: 1}\n"
                           "model: {type: tape, size: 2}\n"
                           "data: {format: csv, train: \"${TEXT}\"}\n"
                           "batch: {global: 4, micro: 4}\n"
                           "optimizer: {type: sgd, lr: 1}\n";

static char *text_path, *other_path;
static char notices[4096];

static int parse(Gacc__V1__JobSpec **job, const char *text, const struct job_overrides *overrides, struct error *error)
{
    FILE *stream = fmemopen(notices, sizeof notices, "w");
    if (!stream) abort();
    notices[0] = '\0';
    int status = job_parse(job, text, strlen(text), "dir/job.yaml", overrides, stream, error);
    fclose(stream);
    if (status == 0) assert_true(job_is_whole(*job));
    return status;
}

static void release(Gacc__V1__JobSpec *job)
{
    gacc__v1__job_spec__free_unpacked(job, NULL);
}

static Gacc__V1__JobSpec *accepted_with(const char *text, const struct job_overrides *overrides)
{
    Gacc__V1__JobSpec *job;
    struct error error = {0};
    if (parse(&job, text, overrides, &error) != 0) fail_msg("%s", error.text);
    return job;
}

static Gacc__V1__JobSpec *accepted(const char *text)
{
    return accepted_with(text, NULL);
}

#define SETS(...)                                                                \
    &(struct job_overrides)                                                      \
    {                                                                            \
        .sets = (const char *const[]){__VA_ARGS__},                              \
        .set_count = sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *) \
    }

static void refused(const char *text, const struct job_overrides *overrides, enum status status, const char *message)
{
    Gacc__V1__JobSpec *job;
    struct error error = {0};
    assert_int_equal(parse(&job, text, overrides, &error), -(int)status);
    assert_string_equal(error.text, message);
    assert_int_equal(error.status, status);
    assert_null(job);
}

/* The text with its first `from` replaced; good until the next call. */
static const char *with(const char *text, const char *from, const char *to)
{
    static char edited[4096];
    const char *at = strstr(text, from);
    if (!at) fail_msg("the job has no \"%s\"", from);
    snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return edited;
}

struct edit {
    const char *from, *to, *message;
};

static void refused_edits(const char *base, const struct edit *edits, size_t count)
{
    for (size_t i = 0; i < count; i++)
        refused(with(base, edits[i].from, edits[i].to), NULL, STATUS_JOB, edits[i].message);
}

#define REFUSED_EDITS(base, edits) refused_edits(base, edits, sizeof(edits) / sizeof *(edits))

static void a_batch_that_is_no_count_is_refused(void **state)
{
    (void)state;
    static const struct edit edits[] = {
        {"micro: 3", "micro: 0", "dir/job.yaml:14:10: batch.micro: 0 is too small: must be at least 1"},
        {"micro: 3", "micro: -1", "dir/job.yaml:14:10: batch.micro: -1 is too small: must be at least 1"},
        {"micro: 3", "micro: 2.5", "dir/job.yaml:14:10: batch.micro: 2.5 is not a whole number"},
        {"micro: 3", "micro: \"4\"", "dir/job.yaml:14:10: batch.micro: \"4\" in quotes is a text: write 4"},
        {"micro: 3", "micro: 2147483648",
         "dir/job.yaml:14:10: batch.micro: 2147483648 is too large: must be at most 2147483647"},
        {"micro: 3", "micro: 99999999999999999999",
         "dir/job.yaml:14:10: batch.micro: 99999999999999999999 is too large: must be at most 2147483647"},
        {"micro: 3", "micro: 2^31", "dir/job.yaml:14:10: batch.micro: 2^31 is not a whole number"},
        {"micro: 3", "micro: 4.0", "dir/job.yaml:14:10: batch.micro: 4.0 is not a whole number in digits: write 4"},
        {"micro: 3", "micro: 1e1", "dir/job.yaml:14:10: batch.micro: 1e1 is not a whole number in digits: write 10"},
        {"micro: 3", "micro: 010", "dir/job.yaml:14:10: batch.micro: 010 has leading zeros: write 10"},
        {"micro: 3", "micro: 0x10", "dir/job.yaml:14:10: batch.micro: 0x10 is not decimal: write 16"},
        {"micro: 3", "micro: 1_000", "dir/job.yaml:14:10: batch.micro: 1_000 is not a number: write 1000"},
        {"micro: 3", "micro: true", "dir/job.yaml:14:10: batch.micro: true is not a whole number"},
        {"micro: 3", "micro:", "dir/job.yaml:14:9: batch.micro: is empty where a whole number is wanted"},
        {"micro: 3", "micro: [3]", "dir/job.yaml:14:10: batch.micro: is a list where a whole number is wanted"},
        {"micro: 3", "micro: {a: 3}", "dir/job.yaml:14:10: batch.micro: is a mapping where a whole number is wanted"},
        {"  micro: 3\n", "", "dir/job.yaml:13:3: batch.micro: is missing"},
        {"global: 12", "global: 2", "dir/job.yaml:14:10: batch.micro: 3 is larger than batch.global 2"},
        {"global: 12", "accumulate: 8",
         "dir/job.yaml:13:3: batch.accumulate: not a key: K follows from batch.global, batch.micro and the ranks"},
        {"  global: 12\n", "", "dir/job.yaml:13:3: batch.global: is missing, and so is batch.tokens"},
        {"global: 12", "tokens: 12", "dir/job.yaml:13:11: batch.tokens: 12 is not a multiple of model.context 8"},
        {"global: 12", "global: 12\n  tokens: 96",
         "dir/job.yaml:14:11: batch.tokens: is given as well as batch.global"},
    };
    REFUSED_EDITS(gpt, edits);
}

static void numbers_are_numbers_in_any_usual_notation(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
    } written[] = {{"lr: 3e-4", 3e-4}, {"lr: 3E-4", 3e-4}, {"lr: 1", 1.0},         {"lr: .5", .5},     {"lr: 1.", 1},
                   {"lr: +2", 2},      {"lr: 0", 0},       {"lr: 1e-310", 1e-310}, {"lr: 1.5e+2", 150}};
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
        Gacc__V1__JobSpec *job = accepted(with(gpt, "lr: 3e-4", written[i].text));
        assert_true(job->optimizer->lr == written[i].value);
        release(job);
    }
}

static void numbers_that_are_texts_are_refused(void **state)
{
    (void)state;
    static const struct edit edits[] = {
        {"3e-4", "\"3e-4\"", "dir/job.yaml:16:7: optimizer.lr: \"3e-4\" in quotes is a text: write 3e-4"},
        {"3e-4", "'1'", "dir/job.yaml:16:7: optimizer.lr: \"1\" in quotes is a text: write 1"},
        {"3e-4", "|\n   3", "dir/job.yaml:16:7: optimizer.lr: \"3?\" is a text where a number is wanted"},
        {"3e-4", "\"fast\"", "dir/job.yaml:16:7: optimizer.lr: \"fast\" is a text where a number is wanted"},
        {"3e-4", "1.5x", "dir/job.yaml:16:7: optimizer.lr: 1.5x is not a number"},
        {"3e-4", "banana", "dir/job.yaml:16:7: optimizer.lr: banana is not a number"},
        {"3e-4", "yes", "dir/job.yaml:16:7: optimizer.lr: yes is not a number"},
        {"3e-4", "3e", "dir/job.yaml:16:7: optimizer.lr: 3e is not a number"},
        {"3e-4", "1 2", "dir/job.yaml:16:7: optimizer.lr: 1 2 is not a number"},
        {"3e-4", ".inf", "dir/job.yaml:16:7: optimizer.lr: .inf is not a finite number"},
        {"3e-4", "-.INF", "dir/job.yaml:16:7: optimizer.lr: -.INF is not a finite number"},
        {"3e-4", ".nan", "dir/job.yaml:16:7: optimizer.lr: .nan is not a finite number"},
        {"3e-4", "nan", "dir/job.yaml:16:7: optimizer.lr: nan is not a finite number"},
        {"3e-4", "1e999", "dir/job.yaml:16:7: optimizer.lr: 1e999 is too large for a double"},
        {"3e-4", "1e-999", "dir/job.yaml:16:7: optimizer.lr: 1e-999 is too small for a double"},
        {"3e-4", "-007.5", "dir/job.yaml:16:7: optimizer.lr: -007.5 has leading zeros: write -7.5"},
        {"3e-4", "1_000.5", "dir/job.yaml:16:7: optimizer.lr: 1_000.5 is not a number: write 1000.5"},
        {"3e-4", "null", "dir/job.yaml:16:7: optimizer.lr: is empty where a number is wanted"},
        {"3e-4", "-1", "dir/job.yaml:16:7: optimizer.lr: -1 is too small: must be at least 0"},
    };
    REFUSED_EDITS(gpt, edits);
}

static void booleans_and_texts_are_what_they_look_like(void **state)
{
    (void)state;
    static const struct edit edits[] = {
        {"width: 32", "width: 32\n  bias: yes", "dir/job.yaml:8:9: model.bias: yes is not true or false"},
        {"width: 32", "width: 32\n  bias: on", "dir/job.yaml:8:9: model.bias: on is not true or false"},
        {"width: 32", "width: 32\n  bias: 1", "dir/job.yaml:8:9: model.bias: 1 is not true or false"},
        {"width: 32", "width: 32\n  bias: \"true\"",
         "dir/job.yaml:8:9: model.bias: \"true\" in quotes is a text: write true"},
        {"width: 32", "width: 32\n  bias:", "dir/job.yaml:8:8: model.bias: is empty where true or false is wanted"},
        {"steps: 100", "steps: 100\n  name: 2024",
         "dir/job.yaml:3:9: job.name: 2024 is a number where a text is wanted: write \"2024\""},
        {"steps: 100", "steps: 100\n  name: 0x1f",
         "dir/job.yaml:3:9: job.name: 0x1f is a number where a text is wanted: write \"0x1f\""},
        {"steps: 100", "steps: 100\n  name: true",
         "dir/job.yaml:3:9: job.name: true is a boolean where a text is wanted: write \"true\""},
        {"steps: 100", "steps: 100\n  name: ~", "dir/job.yaml:3:9: job.name: is empty where a text is wanted"},
        {"steps: 100", "steps: 100\n  name: \"\"", "dir/job.yaml:3:9: job.name: is an empty text"},
        {"steps: 100", "steps: 100\n  name: \"a\\nb\"",
         "dir/job.yaml:3:9: job.name: holds a line break or another control character"},
        {"steps: 100", "steps: 100\n  name: a/b",
         "dir/job.yaml:3:9: job.name: a/b: must be printable, without /, and of 1 to 200 bytes"},
    };
    REFUSED_EDITS(gpt, edits);
    Gacc__V1__JobSpec *job = accepted(with(gpt, "steps: 100", "steps: 100\n  name: \"2024\""));
    assert_string_equal(job->job->name, "2024");
    release(job);
}

static void a_slip_of_the_pen_is_named_and_mended(void **state)
{
    (void)state;
    static const struct edit edits[] = {
        {"job:", "jib:", "dir/job.yaml:1:1: jib: unknown key; did you mean job?"},
        {"layers", "layer", "dir/job.yaml:5:3: model.layer: unknown key; did you mean layers?"},
        {"optimizer:\n", "optimizer:\n  clip_nrom: 1\n",
         "dir/job.yaml:16:3: optimizer.clip_nrom: unknown key; did you mean clip_norm?"},
        {"micro: 3", "micro: 3\n  lr: 1", "dir/job.yaml:15:3: batch.lr: unknown key; did you mean optimizer.lr?"},
        {"job:", "grad_acum: 8\njob:",
         "dir/job.yaml:1:1: grad_acum: unknown key; there are job, model, data, batch, precision, optimizer, schedule, "
         "evaluation, checkpoint, recompute, control, verify"},
        {"job:", "job.steps: 3\njob:",
         "dir/job.yaml:1:1: job.steps: unknown key; sections are nested, not written with dots"},
        {"gpt", "gtp",
         "dir/job.yaml:4:9: model.type: gtp is not one of gpt, mlp, cnn, linear, tape; did you mean gpt?"},
        {"job:", "precision: {compute: \"bf-16\"}\njob:",
         "dir/job.yaml:1:22: precision.compute: bf-16 is not one of fp32, bf16, fp16, fp64; did you mean bf16?"},
        {"job:", "precision: {compute: half}\njob:",
         "dir/job.yaml:1:22: precision.compute: half is not one of fp32, bf16, fp16, fp64"},
        {"job:", "precision: {compute: 16}\njob:",
         "dir/job.yaml:1:22: precision.compute: 16 is not one of fp32, bf16, fp16, fp64"},
        {"type: gpt", "type: gpt\n  activation: tanh",
         "dir/job.yaml:5:15: model.activation: tanh is for model.type mlp, cnn; here it is one of gelu, gelu_tanh"},
        {"type: gpt", "type: [gpt]",
         "dir/job.yaml:4:9: model.type: is a list; it is not one of gpt, mlp, cnn, linear, tape"},
    };
    REFUSED_EDITS(gpt, edits);
}

static void several_optimizers_are_a_list_with_names_and_patterns(void **state)
{
    (void)state;
    static const char two[] =
        "  - {name: body, match: h.*, type: adamw, lr: 3e-4, clip_norm: 1, groups: [{match: a, lr: 3e-5}]}\n"
        "  - {name: rest, match: \"*\", type: sgd, lr: 0.1, momentum: 0.9}";
    Gacc__V1__JobSpec *job = accepted(with(gpt, "  lr: 3e-4", two));
    assert_int_equal(job->n_further_optimizers, 1);
    assert_string_equal(job->optimizer->name, "body");
    assert_true(job->optimizer->clip_norm == 1 && job->optimizer->groups[0]->lr == 3e-5);
    assert_true(job->optimizer->beta1 == 0.9);
    const Gacc__V1__OptimizerSection *rest = job->further_optimizers[0];
    assert_string_equal(rest->match, "*");
    assert_true(rest->type == GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_SGD && rest->lr == 0.1 && rest->momentum == 0.9);
    assert_true(rest->beta1 == 0 && rest->clip_norm == 0);
    release(job);
    static const struct edit edits[] = {
        {"  lr: 3e-4", "  []", "dir/job.yaml:16:3: optimizer: is an empty list"},
        {"  lr: 3e-4", "  - 3", "dir/job.yaml:16:5: optimizer.0: must be a mapping of keys, not a single value"},
        {"  lr: 3e-4", "  - {lr: 3e-4}",
         "dir/job.yaml:16:5: optimizer.0.name: is missing: every optimizer of a list has one"},
        {"  lr: 3e-4", "  - {lr: 3e-4, name: a}",
         "dir/job.yaml:16:5: optimizer.0.match: is missing: every optimizer of a list has one"},
        {"  lr: 3e-4", "  lr: 1\n  name: a",
         "dir/job.yaml:17:9: optimizer.name: is for a list of optimizers; there is one"},
        {"  lr: 3e-4", "  - {lr: 1, name: a, match: x}\n  - {lr: 1, name: a, match: y}",
         "dir/job.yaml:17:19: optimizer.1.name: a is another's name already"},
        {"  lr: 3e-4", "  - {lr: 1, name: a, match: x}\n  - {name: b, match: y}",
         "dir/job.yaml:17:5: optimizer.1.lr: is missing"},
        {"  lr: 3e-4", "  - {lr: 1, name: a, match: x}\n  - {lr: 1, name: b, match: y, clip_norm: 1}",
         "dir/job.yaml:17:43: optimizer.1.clip_norm: the norm is one over all optimizers: optimizer.0.clip_norm bounds "
         "it"},
        {"  lr: 3e-4", "  - {lr: 1, name: a, match: x}\n  - {lr: 1, name: b, match: y, momentum: 0}",
         "dir/job.yaml:17:32: optimizer.1.momentum: does not apply with optimizer.type adamw, only with sgd"},
        {"  lr: 3e-4", "  - {lr: 0, name: a, match: x}\n  - {lr: 1, name: b, match: y}",
         "dir/job.yaml:16:10: optimizer.0.lr: is 0 while another optimizer has 1: optimizers follow the schedule by "
         "their ratio "
         "to it"},
        {"  lr: 3e-4", "  - {lr: 1, name: a, match: x}\n  - {lrr: 1, name: b, match: y}",
         "dir/job.yaml:17:6: optimizer.1.lrr: unknown key; did you mean lr?"},
    };
    REFUSED_EDITS(gpt, edits);
}

static void what_this_version_lacks_is_called_by_its_name(void **state)
{
    (void)state;
    static const struct edit edits[] = {
        {"job:", "observe: {}\njob:", "dir/job.yaml:1:1: observe: not offered by this version"},
    };
    REFUSED_EDITS(gpt, edits);
}

static void a_key_that_does_not_apply_is_refused_with_the_reason(void **state)
{
    (void)state;
    static const struct edit edits[] = {
        {"size: 2", "size: 2, heads: 4",
         "dir/job.yaml:2:30: model.heads: does not apply with model.type tape, only with gpt"},
        {"size: 2", "size: 2, bias: true",
         "dir/job.yaml:2:30: model.bias: does not apply with model.type tape, only with gpt, mlp, cnn, linear"},
        {"size: 2", "size: 2, loss: mse",
         "dir/job.yaml:2:30: model.loss: does not apply with model.type tape, only with mlp, cnn, linear"},
        {"lr: 1", "lr: 1, eps: 1e-8",
         "dir/job.yaml:5:31: optimizer.eps: does not apply with optimizer.type sgd, only with adamw"},
        {"lr: 1", "lr: 1, betas: [0, 0]",
         "dir/job.yaml:5:31: optimizer.betas: does not apply with optimizer.type sgd, only with adamw"},
        {"type: sgd", "momentum: 0.9",
         "dir/job.yaml:5:13: optimizer.momentum: does not apply with optimizer.type adamw, only with sgd"},
        {"micro: 4", "micro: 4, base: 2",
         "dir/job.yaml:4:30: batch.base: does not apply with batch.lr_scaling none, only with linear"},
        {"micro: 4", "micro: 4, lr_scaling: linear",
         "dir/job.yaml:4:8: batch.base: is missing; batch.lr_scaling linear needs it"},
        {"global: 4", "tokens: 4",
         "dir/job.yaml:4:9: batch.tokens: does not apply with model.type tape, only with gpt"},
        {"job:", "schedule: {minimum: 1}\njob:",
         "dir/job.yaml:1:12: schedule.minimum: does not apply with schedule.type constant, only with linear, cosine, "
         "wsd"},
        {"job:", "schedule: {type: cosine, decay: 1}\njob:",
         "dir/job.yaml:1:26: schedule.decay: does not apply with schedule.type cosine, only with wsd"},
        {"job:", "precision: {compute: bf16, loss_scale: {initial: 8}}\njob:",
         "dir/job.yaml:1:28: precision.loss_scale: does not apply with precision.compute bf16, only with fp16"},
        {"job:", "precision: {compute: fp16, loss_scale: {hysteresis: 2}}\njob:",
         "dir/job.yaml:1:41: precision.loss_scale.hysteresis: does not apply with precision.loss_scale.profile torch, "
         "only with megatron, deepspeed"},
        {"job:", "precision: {compute: fp16, loss_scale: {mode: static, interval: 2}}\njob:",
         "dir/job.yaml:1:55: precision.loss_scale.interval: does not apply with precision.loss_scale.mode static, only "
         "with dynamic"},
        {"format: csv", "format: u16", "dir/job.yaml:3:16: data.format: u16 holds tokens, model.type tape reads csv"},
        {"format: csv", "format: idx, labels: {train: a.csv}",
         "dir/job.yaml:3:16: data.format: idx holds images, model.type tape reads csv"},
        {"format: csv", "format: csv, labels: {train: a.csv}",
         "dir/job.yaml:3:21: data.labels: does not apply with data.format csv, only with idx"},
        {", size: 2", "", "dir/job.yaml:2:8: model.size: is missing; model.type tape needs it"},
    };
    REFUSED_EDITS(tape, edits);
    refused(with(gpt, "bytes", "csv"), NULL, STATUS_JOB,
            "dir/job.yaml:10:11: data.format: csv holds rows, model.type gpt reads bytes, u16, u32 or llmc");
}

static void yaml_that_a_job_does_not_need_is_refused(void **state)
{
    (void)state;
    static const struct edit edits[] = {
        {"lr: 3e-4", "lr: &x 3e-4", "dir/job.yaml:16:7: optimizer.lr: &x is an anchor; anchors are refused"},
        {"lr: 3e-4", "lr: *x",
         "dir/job.yaml:16:7: optimizer.lr: *x is an alias; aliases are refused (put a text that begins with * in "
         "quotes)"},
        {"lr: 3e-4", "lr: !!float 3",
         "dir/job.yaml:16:7: optimizer.lr: tag:yaml.org,2002:float is a tag; tags are refused"},
        {"lr: 3e-4", "lr: 1\n  lr: 2", "dir/job.yaml:17:3: optimizer.lr: is given twice, first in line 16"},
        {"lr: 3e-4", "lr: 1\n\"job\": {}", "dir/job.yaml:17:1: job: is given twice, first in line 1"},
        {"lr: 3e-4", "lr: 1\n---\njob: {}", "dir/job.yaml:17:1: a second document; a job is one"},
        {"lr: 3e-4", "? [lr]\n  : 1", "dir/job.yaml:16:5: optimizer: a key must be a word, not a list or a mapping"},
        {"lr: 3e-4", "<<: {lr: 1}",
         "dir/job.yaml:16:3: optimizer.<<: unknown key; there are name, match, type, lr, betas, eps, momentum, "
         "weight_decay, "
         "clip_norm, groups"},
        {"  lr: 3e-4", "\tlr: 3e-4", "dir/job.yaml:16:1: a tab; YAML indents with spaces"},
        {"lr: 3e-4", "lr: [3e-4",
         "dir/job.yaml:17:1: not YAML: did not find expected ',' or ']' while parsing a flow sequence"},
        {"lr: 3e-4", "lr: \xff", "dir/job.yaml:16:7: byte 0xff: the file is not UTF-8"},
        {"lr: 3e-4", "lr: é\xc3(", "dir/job.yaml:16:8: byte 0xc3: the file is not UTF-8"},
        {"lr: 3e-4", "lr: \"a\\0b\"", "dir/job.yaml:16:7: optimizer.lr: holds a NUL character"},
        {"  lr: 3e-4", "", "dir/job.yaml:15:11: optimizer: must be a mapping of keys, not nothing"},
        {"  lr: 3e-4", "  3", "dir/job.yaml:16:3: optimizer: must be a mapping of keys, not a single value"},
        {"lr: 3e-4", "lr: [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]",
         "dir/job.yaml:16:22: optimizer.lr: nested deeper than 16 levels"},
        {"job:", "%YAML 2.0\n---\njob:", "dir/job.yaml:1:1: not YAML: found incompatible YAML document"},
    };
    REFUSED_EDITS(gpt, edits);
    refused("", NULL, STATUS_JOB, "dir/job.yaml:1:1: is empty: there is no job in it");
    refused("# nothing\n---\n...\n", NULL, STATUS_JOB, "dir/job.yaml:1:1: is empty: there is no job in it");
    refused("job\n", NULL, STATUS_JOB, "dir/job.yaml:1:1: a job is a mapping of sections, this is a word");
    refused("- job\n", NULL, STATUS_JOB, "dir/job.yaml:1:1: a job is a mapping of sections, this is a list");
}

static void byte_order_mark_carriage_returns_and_directives_are_harmless(void **state)
{
    (void)state;
    char text[2048] = "\xef\xbb\xbf%YAML 1.2\r\n---\r\n";
    size_t length = strlen(text);
    for (const char *at = gpt; *at; at++) {
        if (*at == '\n') text[length++] = '\r';
        text[length++] = *at;
    }
    text[length] = '\0';
    release(accepted(text));
    refused(with(text, "3e-4", "x"), NULL, STATUS_JOB, "dir/job.yaml:18:7: optimizer.lr: x is not a number");
}

static void a_job_has_one_length(void **state)
{
    (void)state;
    static const struct edit edits[] = {
        {"steps: 100", "seed: 1", "dir/job.yaml:2:3: job: one of steps, tokens and epochs is missing"},
        {"steps: 100", "steps: 1\n  epochs: 2",
         "dir/job.yaml:3:11: job.epochs: is given as well as job.steps; a job has one of steps, tokens and epochs"},
        {"steps: 100", "steps: 0", "dir/job.yaml:2:10: job.steps: 0 is too small: must be at least 1"},
    };
    REFUSED_EDITS(gpt, edits);
    Gacc__V1__JobSpec *job = accepted(with(gpt, "steps: 100", "tokens: 1000"));
    assert_int_equal(job_tokens_per_step(job), 96);
    assert_int_equal(job->job->steps, 0);
    release(job);
}

static void tokens_may_state_the_global_batch(void **state)
{
    (void)state;
    Gacc__V1__JobSpec *job = accepted(with(gpt, "global: 12", "tokens: 768"));
    assert_int_equal(job->batch->global, 96);
    release(job);
}

static void defaults_are_those_of_the_manual(void **state)
{
    (void)state;
    Gacc__V1__JobSpec *job = accepted(gpt);
    assert_string_equal(job->job->name, "job");
    assert_string_equal(job->job->output, "runs/job");
    assert_int_equal(job->job->seed, 1337);
    assert_int_equal(job->model->vocab, 256);
    assert_true(job->model->bias && job->model->tie && job->model->init_std == 0.02);
    assert_int_equal(job->model->activation, GACC__V1__ACTIVATION__ACTIVATION_GELU_TANH);
    assert_int_equal(job->model->pad_vocab, 128);
    assert_true(job->optimizer->beta1 == 0.9 && job->optimizer->beta2 == 0.999 && job->optimizer->eps == 1e-8);
    assert_true(job->optimizer->clip_norm == 0 && job->optimizer->weight_decay == 0);
    assert_int_equal(job->precision->nonfinite_stop_after, 3);
    assert_null(job->precision->loss_scale);
    assert_true(job->control->timeout_seconds == 60);
    assert_int_equal(job->digest.len, 32);
    release(job);
}

/* loss_scale_profiles.md */
static void a_profile_sets_the_loss_scale(void **state)
{
    (void)state;
    static const struct {
        const char *profile;
        double initial, minimum, maximum;
        uint32_t interval, hysteresis;
    } profiles[] = {{"torch", 65536, 0, 0, 2000, 1},
                    {"apex", 65536, 0, 16777216, 2000, 1},
                    {"megatron", 4294967296, 1, 0, 1000, 2},
                    {"deepspeed", 65536, 1, 0, 1000, 2},
                    {"deepspeed-fused", 65536, 1, 0, 1000, 1}};
    for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++) {
        char set[64];
        snprintf(set, sizeof set, "precision.loss_scale.profile=%s", profiles[i].profile);
        Gacc__V1__JobSpec *job = accepted_with(tape, SETS("precision.compute=fp16", set));
        const Gacc__V1__LossScaleSection *scale = job->precision->loss_scale;
        assert_true(scale->initial == profiles[i].initial && scale->minimum == profiles[i].minimum &&
                    scale->maximum == profiles[i].maximum);
        assert_true(scale->growth == 2 && scale->backoff == 0.5);
        assert_int_equal(scale->interval, profiles[i].interval);
        assert_int_equal(scale->hysteresis, profiles[i].hysteresis);
        assert_true(scale->stop_after > 0); /* a permanent overflow never loops in silence */
        struct loss_scale_rules rules;
        job_loss_scale_rules(scale, &rules);
        assert_int_equal(rules.profile, i); /* both enums count in this order */
        release(job);
    }
}

static void loss_scales_that_cannot_work_are_refused(void **state)
{
    (void)state;
#define SCALE(key, value) "precision: {compute: fp16, loss_scale: {" key ": " value "}}\njob:"
    static const struct edit edits[] = {
        {"job:", SCALE("initial", "0"),
         "dir/job.yaml:1:50: precision.loss_scale.initial: 0 is too small: must be at least 5.877471754111438e-39"},
        {"job:", SCALE("initial", "-1"),
         "dir/job.yaml:1:50: precision.loss_scale.initial: -1 is too small: must be at least 5.877471754111438e-39"},
        {"job:", SCALE("initial", "nan"),
         "dir/job.yaml:1:50: precision.loss_scale.initial: nan is not a finite number"},
        {"job:", SCALE("initial", ".inf"),
         "dir/job.yaml:1:50: precision.loss_scale.initial: .inf is not a finite number"},
        {"job:", SCALE("initial", "auto"), "dir/job.yaml:1:50: precision.loss_scale.initial: auto is not a number"},
        {"job:", SCALE("initial", "1e39"),
         "dir/job.yaml:1:50: precision.loss_scale.initial: 1e39 is too large: must be at most 3.4028234663852886e+38"},
        {"job:", SCALE("growth", "0.5"),
         "dir/job.yaml:1:49: precision.loss_scale.growth: 0.5 is too small: must be above 1"},
        {"job:", SCALE("growth", "1"),
         "dir/job.yaml:1:49: precision.loss_scale.growth: 1 is too small: must be above 1"},
        {"job:", SCALE("backoff", "2"),
         "dir/job.yaml:1:50: precision.loss_scale.backoff: 2 is too large: must be below 1"},
        {"job:", SCALE("backoff", "0"),
         "dir/job.yaml:1:50: precision.loss_scale.backoff: 0 is too small: must be above 0"},
        {"job:", SCALE("interval", "0"),
         "dir/job.yaml:1:51: precision.loss_scale.interval: 0 is too small: must be at least 1"},
        {"job:", SCALE("minimum", "131072"), "dir/job.yaml:1:40: precision.loss_scale.initial: is below minimum"},
        {"job:", SCALE("maximum", "1024"), "dir/job.yaml:1:40: precision.loss_scale.initial: is above maximum"},
    };
    REFUSED_EDITS(tape, edits);
}

static void clip_norm_is_null_or_positive(void **state)
{
    (void)state;
    static const struct edit edits[] = {
        {"lr: 1", "lr: 1, clip_norm: -1",
         "dir/job.yaml:5:42: optimizer.clip_norm: -1 is too small: must be above 0, or null"},
        {"lr: 1", "lr: 1, clip_norm: 0",
         "dir/job.yaml:5:42: optimizer.clip_norm: 0 is too small: must be above 0, or null"},
        {"lr: 1", "lr: 1, clip_norm: off", "dir/job.yaml:5:42: optimizer.clip_norm: off is not a number"},
    };
    REFUSED_EDITS(tape, edits);
    static const char *const offs[] = {"lr: 1, clip_norm: null", "lr: 1, clip_norm: ~", "lr: 1, clip_norm: "};
    for (size_t i = 0; i < 3; i++) {
        Gacc__V1__JobSpec *job = accepted(with(tape, "lr: 1", offs[i]));
        assert_true(job->optimizer->clip_norm == 0);
        release(job);
    }
}

static void numbers_that_do_not_fit_each_other_are_refused(void **state)
{
    (void)state;
    static const struct edit edits[] = {
        {"heads: 4", "heads: 5", "dir/job.yaml:6:10: model.heads: 5 does not divide model.width 32"},
        {"format: bytes", "format: u16", "dir/job.yaml:4:3: model.vocab: is missing; data.format u16 needs it"},
        {"width: 32\n  context: 8\ndata:\n  format: bytes",
         "width: 32\n  vocab: 119547\n  context: 8\ndata:\n  format: u16",
         "dir/job.yaml:8:10: model.vocab: 119547: the type cannot hold the vocabulary: data.format u16 ends at 65535"},
        {"width: 32\n  context: 8", "width: 32\n  vocab: 257\n  context: 8",
         "dir/job.yaml:8:10: model.vocab: 257: the type cannot hold the vocabulary: data.format bytes ends at 255"},
        {"job:", "schedule: {type: cosine, warmup: 101}\njob:",
         "dir/job.yaml:1:34: schedule.warmup: 101 is above schedule.total 100 (the job's steps)"},
        {"job:", "schedule: {type: cosine, total: 50, warmup: 60}\njob:",
         "dir/job.yaml:1:45: schedule.warmup: 60 is above schedule.total 50"},
        {"job:", "schedule: {type: wsd, decay: 101}\njob:",
         "dir/job.yaml:1:30: schedule.decay: 101 is above schedule.total 100 (the job's steps)"},
        {"job:", "schedule: {type: wsd, decay: 60, warmup: 50}\njob:",
         "dir/job.yaml:1:30: schedule.decay: 60 and schedule.warmup 50 together are above schedule.total 100 (the "
         "job's steps)"},
        {"job:", "schedule: {type: linear, minimum: 1e-3}\njob:",
         "dir/job.yaml:1:35: schedule.minimum: 0.001 is above optimizer.lr 0.0003"},
        {"job:", "evaluation: {every: 10}\njob:", "dir/job.yaml:1:21: evaluation.every: needs data.validation"},
        {"lr: 3e-4", "lr: 0\n  groups: [{match: a, lr: 1}]",
         "dir/job.yaml:16:7: optimizer.lr: is 0 while a group has 1: groups follow the schedule by their ratio to it"},
        {"lr: 3e-4", "lr: 1\n  groups: [{match: \"\"}]",
         "dir/job.yaml:17:20: optimizer.groups.0.match: is an empty text"},
        {"lr: 3e-4", "lr: 1\n  groups: [{match: a, frozen: 1}]",
         "dir/job.yaml:17:31: optimizer.groups.0.frozen: 1 is not true or false"},
        {"lr: 3e-4", "lr: 1\n  groups: [{match: a, frozen: true, frozen_from: 3}]",
         "dir/job.yaml:17:50: optimizer.groups.0.frozen_from: is without effect: the group is frozen"},
        {"lr: 3e-4", "lr: 1\n  groups: [{match: a, frozen_until: 3, frozen_from: 3}]",
         "dir/job.yaml:17:53: optimizer.groups.0.frozen_from: 3 is not behind frozen_until 3: the group would never be "
         "trained"},
        {"lr: 3e-4", "lr: 1\n  groups: [{lr: 1}]", "dir/job.yaml:17:12: optimizer.groups.0.match: is missing"},
        {"lr: 3e-4", "lr: 1\n  groups: {match: a}",
         "dir/job.yaml:17:11: optimizer.groups: must be a list of mappings, not a mapping"},
        {"lr: 3e-4", "lr: 1\n  betas: [0.9]",
         "dir/job.yaml:17:10: optimizer.betas: must be a list of two numbers, such as [0.9, 0.999]"},
        {"lr: 3e-4", "lr: 1\n  betas: [0.9, 1]",
         "dir/job.yaml:17:16: optimizer.betas: 1 is too large: must be below 1"},
        {"type: gpt", "type: gpt\n  init: {file: \"${TEXT}\", values: {a: [1]}}",
         "dir/job.yaml:5:35: model.init.values: is given as well as model.init.file"},
        {"type: gpt", "type: gpt\n  init: {values: {h.0.w: [1, x]}}",
         "dir/job.yaml:5:30: model.init.values.h.0.w: x is not a number"},
    };
    REFUSED_EDITS(gpt, edits);
}

static void numbers_that_fp32_cannot_hold_are_refused_where_it_is_what_updates(void **state)
{
    (void)state;
    static const struct edit edits[] = {
        {"lr: 3e-4", "lr: 3.5e38",
         "dir/job.yaml:16:7: optimizer.lr: 3.5e+38 is more than fp32 holds, in which parameters are updated"},
        {"lr: 3e-4", "lr: 1\n  weight_decay: 1e39",
         "dir/job.yaml:17:17: optimizer.weight_decay: 1e+39 is more than fp32 holds, in which parameters are updated"},
        {"lr: 3e-4", "lr: 1\n  eps: 1e-46",
         "dir/job.yaml:17:8: optimizer.eps: 1e-46 is less than fp32 holds, in which parameters are updated"},
        {"lr: 3e-4", "lr: 1\n  groups: [{match: a}, {match: b, lr: 1e39}]",
         "dir/job.yaml:17:39: optimizer.groups.1.lr: 1e+39 is more than fp32 holds, in which parameters are updated"},
        {"lr: 3e-4", "lr: 1\n  groups: [{match: a, weight_decay: 1e39}]",
         "dir/job.yaml:17:37: optimizer.groups.0.weight_decay: 1e+39 is more than fp32 holds, in which parameters are "
         "updated"},
    };
    REFUSED_EDITS(gpt, edits);
    release(accepted_with(gpt, SETS("optimizer.lr=3.4e38", "optimizer.weight_decay=3.4e38", "optimizer.eps=1.2e-38")));
    release(accepted_with(gpt, SETS("precision.compute=fp64", "optimizer.lr=1e39", "optimizer.weight_decay=1e300",
                                    "optimizer.eps=1e-300")));
}

static void a_vocabulary_of_65536_fits_u16(void **state)
{
    (void)state;
    release(accepted(with(gpt, "width: 32\n  context: 8\ndata:\n  format: bytes",
                          "width: 32\n  vocab: 65536\n  context: 8\ndata:\n  format: u16")));
}

static void the_schedule_ends_with_the_job(void **state)
{
    (void)state;
    Gacc__V1__JobSpec *job = accepted_with(gpt, SETS("schedule.type=cosine", "schedule.warmup=100"));
    assert_int_equal(job->schedule->total, 100);
    release(job);
    job = accepted_with(gpt, SETS("schedule.type=cosine", "schedule.warmup=500", "job.epochs=1"));
    assert_int_equal(job->schedule->total, 0); /* the data will tell */
    release(job);
    job = accepted_with(gpt, SETS("schedule.warmup=500")); /* constant: no total to be above */
    release(job);
}

static void linear_scaling_multiplies_once_by_global_over_base(void **state)
{
    (void)state;
    Gacc__V1__JobSpec *job = accepted_with(
        gpt, SETS("batch.lr_scaling=linear", "batch.base=4", "optimizer.groups=[{match: a, lr: 1}, {match: b}]"));
    assert_true(job->optimizer->lr == 3e-4 * 3 && job->optimizer->lr_written == 3e-4);
    assert_true(job->optimizer->groups[0]->lr == 3 && job->optimizer->groups[1]->lr == 3e-4 * 3);
    assert_true(job->optimizer->groups[0]->weight_decay < 0);
    release(job);
    /* Another b, so another K, is another split of the same batch: the same lr. */
    job = accepted_with(gpt, SETS("batch.micro=1"));
    assert_true(job->optimizer->lr == 3e-4);
    release(job);
}

static void a_rate_that_looks_multiplied_by_k_is_doubted(void **state)
{
    (void)state;
    /* 4 micro-batches. */
    release(accepted_with(gpt, SETS("optimizer.lr=0.012")));
    assert_string_equal(notices,
                        "gaccd: optimizer.lr 0.012 looks like 0.003 multiplied by the number of micro-batches (4): the "
                        "gradient is a mean over the global batch, so lr does not depend on K\n");
    struct job_overrides two_ranks = *SETS("optimizer.lr=0.018", "batch.micro=2"); /* K = 3 */
    two_ranks.ranks = 2;
    release(accepted_with(gpt, &two_ranks));
    assert_non_null(strstr(notices, "0.018 looks like 0.003 multiplied by the number of micro-batches (6)"));
    two_ranks = *SETS("optimizer.lr=0.012", "batch.micro=1"); /* M = 12, K = 6 */
    two_ranks.ranks = 2;
    release(accepted_with(gpt, &two_ranks));
    assert_non_null(strstr(notices, "0.012 looks like 0.001 multiplied by the number of micro-batches (12)"));
    two_ranks = *SETS("optimizer.lr=0.024", "batch.micro=1", "batch.global=16"); /* M = 16: 0.0015; K = 8: 0.003 */
    two_ranks.ranks = 2;
    release(accepted_with(gpt, &two_ranks));
    assert_non_null(strstr(notices, "0.024 looks like 0.003 multiplied by the number of micro-batches of a rank (8)"));
    /* Large for their own sake, as the rates of small models are; or not larger than usual. */
    static const char *const plausible[] = {"optimizer.lr=0.01",  "optimizer.lr=0.02", "optimizer.lr=0.03",
                                            "optimizer.lr=0.025", "optimizer.lr=0.05", "optimizer.lr=0.5",
                                            "optimizer.lr=1",     "optimizer.lr=2.4",  "optimizer.lr=0.0012"};
    for (size_t i = 0; i < sizeof plausible / sizeof *plausible; i++) {
        release(accepted_with(gpt, SETS(plausible[i])));
        assert_string_equal(notices, "");
    }
    release(accepted_with(gpt, SETS("optimizer.lr=0.012", "batch.lr_scaling=linear", "batch.base=12")));
    assert_string_equal(notices, "");
    release(accepted_with(gpt, SETS("optimizer.type=sgd", "optimizer.lr=1")));
    assert_string_equal(notices, "");
    release(accepted_with(gpt, SETS("optimizer.type=sgd", "optimizer.lr=1.2")));
    assert_non_null(strstr(notices, "1.2 looks like 0.3 multiplied"));
}

static void paths_take_variables_and_globs(void **state)
{
    (void)state;
    setenv("DIR", scratch, 1);
    Gacc__V1__JobSpec *job = accepted(with(gpt, "${TEXT}", "[\"${DIR}/*.txt\", \"${TEXT}\"]"));
    assert_int_equal(job->data->n_train, 3);
    assert_string_equal(job->data->train[0], text_path);
    assert_string_equal(job->data->train[1], other_path);
    assert_string_equal(job->data->train[2], text_path);
    release(job);
    char message[512];
    snprintf(message, sizeof message, "dir/job.yaml:11:10: data.train: %s/*.csv matches no file", scratch);
    refused(with(gpt, "${TEXT}", "${DIR}/*.csv"), NULL, STATUS_MISSING, message);
    snprintf(message, sizeof message, "dir/job.yaml:11:10: data.train: %s/none: No such file or directory", scratch);
    refused(with(gpt, "${TEXT}", "${DIR}/none"), NULL, STATUS_MISSING, message);
    snprintf(message, sizeof message, "dir/job.yaml:11:10: data.train: %s: Is a directory", scratch);
    refused(with(gpt, "${TEXT}", "${DIR}"), NULL, STATUS_MISSING, message);
    refused(with(gpt, "${TEXT}", "/dev/null"), NULL, STATUS_MISSING,
            "dir/job.yaml:11:10: data.train: /dev/null: is not a regular file");
    unsetenv("NOWHERE");
    refused(with(gpt, "${TEXT}", "${NOWHERE}/x"), NULL, STATUS_JOB,
            "dir/job.yaml:11:10: data.train: the environment has no variable NOWHERE");
    refused(with(gpt, "${TEXT}", "x/${TEXT"), NULL, STATUS_JOB,
            "dir/job.yaml:11:10: data.train: ${TEXT: ${ wants the name of an environment variable and }");
    refused(with(gpt, "${TEXT}", "[]"), NULL, STATUS_JOB, "dir/job.yaml:11:10: data.train: is an empty list");
    refused(gpt, SETS("model.init.file=none.safetensors"), STATUS_MISSING,
            "--set model.init.file: none.safetensors: No such file or directory");
}

static void validation_is_a_fraction_or_paths(void **state)
{
    (void)state;
    Gacc__V1__JobSpec *job = accepted_with(gpt, SETS("data.validation=0.1"));
    assert_true(job->data->validation_fraction == 0.1 && job->data->n_validation == 0);
    release(job);
    job = accepted_with(gpt, SETS("data.validation=\"${TEXT}\""));
    assert_true(job->data->validation_fraction == 0 && job->data->n_validation == 1);
    release(job);
    refused(gpt, SETS("data.validation=1"), STATUS_JOB,
            "--set data.validation: 1 is too large: must be below 1, or null");
    refused(gpt, SETS("data.validation=0"), STATUS_JOB,
            "--set data.validation: 0 is too small: must be above 0, or null");
}

static void times_have_units(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        double seconds;
    } written[] = {{"control.timeout=60", 60},     {"control.timeout=60 s", 60},   {"control.timeout=500 ms", 0.5},
                   {"control.timeout=2 min", 120}, {"control.timeout=1.5h", 5400}, {"control.timeout=\"7 s\"", 7}};
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
        Gacc__V1__JobSpec *job = accepted_with(gpt, SETS(written[i].set));
        assert_true(job->control->timeout_seconds == written[i].seconds);
        release(job);
    }
    refused(gpt, SETS("control.timeout=60 sec"), STATUS_JOB,
            "--set control.timeout: 60 sec: no such unit of time; there are ms, s, min and h");
    refused(gpt, SETS("control.timeout=1 ms"), STATUS_JOB,
            "--set control.timeout: 1 ms is too small: must be at least 0.1");
    refused(gpt, SETS("control.timeout=\"60\""), STATUS_JOB,
            "--set control.timeout: \"60\" in quotes is a text: write 60");
}

static void endpoints_are_sockets(void **state)
{
    (void)state;
    static const char *const legal[] = {"control.listen=unix:auto",
                                        "control.listen=unix:/run/x.sock",
                                        "control.listen=tcp://127.0.0.1:7000",
                                        "control.listen=tcp://[::1]:0",
                                        "control.workers=auto",
                                        "control.workers=tcp://host:65535"};
    for (size_t i = 0; i < sizeof legal / sizeof *legal; i++) release(accepted_with(gpt, SETS(legal[i])));
    static const char *const wrong[] = {"auto",         "tcp://host",    "tcp://:1", "tcp://host:65536",
                                        "tcp://host:x", "http://host:1", "unix:"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char set[64], message[128];
        snprintf(set, sizeof set, "control.listen=\"%s\"", wrong[i]);
        snprintf(message, sizeof message, "--set control.listen: %s is not unix:auto, unix:PATH or tcp://HOST:PORT",
                 wrong[i]);
        refused(gpt, SETS(set), STATUS_JOB, message);
    }
    refused(gpt, SETS("control.workers=unix:/x"), STATUS_JOB,
            "--set control.workers: unix:/x is not auto or tcp://HOST:PORT");
}

/* ${TEXT} is a file; what is in it is looked at when the job starts. */
#define TLS_PAIR "control.tls={certificate: \"${TEXT}\", key: \"${TEXT}\"}"

static void other_hosts_come_with_tls_or_by_a_word_in_the_job(void **state)
{
    (void)state;
    static const char *const own[] = {"tcp://127.0.0.1:0", "tcp://127.8.9.1:70", "tcp://[::1]:0", "tcp://localhost:0"};
    static const char *const others[] = {"tcp://0.0.0.0:0",   "tcp://[::]:0",           "tcp://10.0.0.1:70",
                                         "tcp://128.0.0.1:0", "tcp://node7:7000",       "tcp://localhost.example.org:1",
                                         "tcp://127.1:0",     "tcp://[::ffff:7f00:1]:0"};
    char set[128], message[512];
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        snprintf(set, sizeof set, "control.listen=\"%s\"", own[i]);
        release(accepted_with(gpt, SETS(set)));
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(set, sizeof set, "control.listen=\"%s\"", others[i]);
        snprintf(message, sizeof message,
                 "--set control.listen: %s: other hosts can come there, so control.tls.certificate and control.tls.key "
                 "are needed (control.tls.required: false does without TLS)",
                 others[i]);
        refused(gpt, SETS(set), STATUS_JOB, message);
        release(accepted_with(gpt, SETS(set, TLS_PAIR)));
        release(accepted_with(gpt, SETS(set, "control.tls.required=false")));
    }
    release(accepted_with(gpt, SETS("control.workers=tcp://0.0.0.0:0"))); /* has a certificate of its own */
}

static void keys_of_tls_belong_together(void **state)
{
    (void)state;
    const char *const listen = "control.listen=tcp://127.0.0.1:0";
    refused(gpt, SETS(listen, "control.tls.certificate=x"), STATUS_JOB,
            "--set control.tls.certificate: is given without control.tls.key");
    refused(gpt, SETS(listen, "control.tls.key=x"), STATUS_JOB,
            "--set control.tls.key: is given without control.tls.certificate");
    refused(gpt, SETS(listen, "control.tls.client_authorities=x"), STATUS_JOB,
            "--set control.tls.client_authorities: is given without control.tls.certificate");
    refused(gpt, SETS(TLS_PAIR), STATUS_JOB,
            "--set control.tls: control.tls.certificate: does not go with control.listen unix:auto: TLS is for "
            "tcp://HOST:PORT");
    refused(gpt, SETS(listen, TLS_PAIR, "control.tls.key=none.key"), STATUS_MISSING,
            "--set control.tls.key: none.key: No such file or directory");
    refused(gpt, SETS(listen, TLS_PAIR, "control.tls.client_authorities=/"), STATUS_MISSING,
            "--set control.tls.client_authorities: /: Is a directory");
}

static void set_beats_the_file(void **state)
{
    (void)state;
    Gacc__V1__JobSpec *job =
        accepted_with(gpt, SETS("optimizer.lr=1", "optimizer.groups.0.match=\"*.bias\"", "optimizer.groups.0.lr=2",
                                "optimizer.betas=[0.1, 0.2]", "optimizer.betas.1=0.95", "batch.micro=6",
                                "model.init.values.h.0.w=[1, 2]", "model.init.values.h.0.w.1=3"));
    assert_true(job->optimizer->lr == 1 && job->optimizer->beta1 == 0.1 && job->optimizer->beta2 == 0.95);
    assert_string_equal(job->optimizer->groups[0]->match, "*.bias");
    assert_true(job->optimizer->groups[0]->lr == 2);
    assert_int_equal(job->batch->micro, 6);
    assert_int_equal(job->model->n_init_values, 1);
    assert_string_equal(job->model->init_values[0]->name, "h.0.w");
    assert_true(job->model->init_values[0]->values[0] == 1 && job->model->init_values[0]->values[1] == 3);
    release(job);
}

static void set_names_its_path_in_errors(void **state)
{
    (void)state;
    static const struct {
        const char *set, *message;
        enum status status;
    } wrong[] = {
        {"optimizer.lr", "--set optimizer.lr: wants key.path=value", STATUS_USAGE},
        {"=3", "--set =3: wants key.path=value", STATUS_USAGE},
        {"optimizer.lr=\"1\"", "--set optimizer.lr: \"1\" in quotes is a text: write 1", STATUS_JOB},
        {"optimizer.lr=", "--set optimizer.lr: is empty where a number is wanted", STATUS_JOB},
        {"optimizer.lr=#1", "--set optimizer.lr: is a comment, not a value", STATUS_JOB},
        {"optimizer.lr=[1",
         "--set optimizer.lr: not YAML: did not find expected ',' or ']' while parsing a flow sequence", STATUS_JOB},
        {"optimizer.lr=&a 1", "--set optimizer.lr: &a is an anchor; anchors are refused", STATUS_JOB},
        {"optimizer.rl=1", "--set optimizer.rl: unknown key; did you mean lr?", STATUS_JOB},
        {"optimiser.lr=1", "--set optimiser.lr: optimiser: unknown key; did you mean optimizer?", STATUS_JOB},
        {"optimizer.0.lr=1", "--set optimizer.0.lr: optimizer.0: unknown key; optimizer is not a list", STATUS_JOB},
        {"optimizer.lr.x=1", "--set optimizer.lr.x: optimizer.lr holds no keys", STATUS_JOB},
        {"optimizer..lr=1", "--set optimizer..lr: not a key path", STATUS_JOB},
        {"optimizer.groups.0.lr=1", "--set optimizer.groups.0.lr: optimizer.groups.0.match: is missing", STATUS_JOB},
        {"optimizer.learning_rate=1", "--set optimizer.learning_rate: unknown key; did you mean lr?", STATUS_JOB},
        {"batch.gradient_accumulation_steps=4",
         "--set batch.gradient_accumulation_steps: is derived: K and M follow from batch.global, batch.micro and the "
         "ranks",
         STATUS_JOB},
        {"optimizer={lrr: 1}", "--set optimizer: optimizer.lrr: unknown key; did you mean lr?", STATUS_JOB},
        {"schedule.total=3",
         "--set schedule.total: does not apply with schedule.type constant, only with linear, cosine, wsd", STATUS_JOB},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refused(gpt, SETS(wrong[i].set), wrong[i].status, wrong[i].message);
    refused(with(gpt, "lr: 3e-4", "lr: 1\n  groups: [{match: a}]"), SETS("optimizer.groups.2.lr=1"), STATUS_JOB,
            "--set optimizer.groups.2.lr: no element 2: the list has 1");
    refused(with(gpt, "lr: 3e-4", "lr: 1\n  groups: [{match: a}]"), SETS("optimizer.groups.first.lr=1"), STATUS_JOB,
            "--set optimizer.groups.first.lr: no element first: a list's go by their index, from 0");
    refused(gpt, SETS("model.init.values.h.0.w=[1, 2]", "model.init.values.h.0.w.3=1"), STATUS_JOB,
            "--set model.init.values.h.0.w.3: no element 3: the list has 2");
}

static void another_precision_drops_the_loss_scale_and_says_so(void **state)
{
    (void)state;
    const char *fp16 = with(gpt, "job:", "precision: {compute: fp16, loss_scale: {initial: 8}}\njob:");
    Gacc__V1__JobSpec *job = accepted_with(fp16, SETS("precision.compute=bf16"));
    assert_null(job->precision->loss_scale);
    assert_string_equal(notices, "gaccd: --set precision.compute drops precision.loss_scale of dir/job.yaml\n");
    release(job);
    job = accepted_with(fp16, SETS("precision.compute=fp16"));
    assert_true(job->precision->loss_scale->initial == 8);
    release(job);
    refused(fp16, SETS("precision.compute=fp32", "precision.loss_scale.initial=4"), STATUS_JOB,
            "dir/job.yaml:1:28: precision.loss_scale: does not apply with precision.compute fp32, only with fp16");
}

/* With a choice of --set's goes what the file has for the file's own, a section as a whole; not what --set gives, and
 * not what does not apply to a choice of the file's. */
static void a_choice_given_with_set_drops_what_the_file_has_for_another(void **state)
{
    (void)state;
    static const char scale[] =
        "precision: {compute: fp16, loss_scale: {initial: 8, on_overflow: retry, retries: 3}}\njob:";
    static const char rates[] = "schedule: {type: wsd, warmup: 2, decay: 20, minimum: 1e-5}\njob:";
    static const char two[] = "optimizer:\n  - {name: a, match: h.*, type: adamw, lr: 1, eps: 1e-7}\n"
                              "  - {name: b, match: \"*\", type: sgd, lr: 1, momentum: 0.9}\n";
    const struct {
        const char *from, *to, *set, *dropped[3];
    } rows[] = {
        {"job:", scale, "precision.loss_scale.on_overflow=skip", {"precision.loss_scale.retries"}},
        {"job:",
         scale,
         "precision.loss_scale.mode=static",
         {"precision.loss_scale.on_overflow", "precision.loss_scale.retries"}},
        {"job:", scale, "precision.compute=fp32", {"precision.loss_scale"}},
        {"lr: 3e-4",
         "lr: 1\n  eps: 1e-7\n  betas: [0.8, 0.9]",
         "optimizer.type=sgd",
         {"optimizer.betas", "optimizer.eps"}},
        {"optimizer:\n  lr: 3e-4\n", two, "optimizer.1.type=adamw", {"optimizer.1.momentum"}},
        {"job:", rates, "schedule.type=cosine", {"schedule.decay"}},
        {"job:", rates, "schedule.type=constant", {"schedule.minimum", "schedule.decay"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char wanted[512] = "";
        const size_t length = strcspn(rows[i].set, "=");
        for (size_t k = 0; k < 3 && rows[i].dropped[k]; k++)
            snprintf(wanted + strlen(wanted), sizeof wanted - strlen(wanted),
                     "gaccd: --set %.*s drops %s of dir/job.yaml\n", (int)length, rows[i].set, rows[i].dropped[k]);
        release(accepted_with(with(gpt, rows[i].from, rows[i].to), SETS(rows[i].set)));
        assert_string_equal(notices, wanted);
    }
    refused(with(gpt, "job:", scale), SETS("precision.loss_scale.on_overflow=skip", "precision.loss_scale.retries=2"),
            STATUS_JOB,
            "--set precision.loss_scale.retries: does not apply with precision.loss_scale.on_overflow skip, only with "
            "retry");
    refused(with(gpt, "lr: 3e-4", "type: sgd\n  lr: 1\n  eps: 1e-7"), SETS("optimizer.lr=2"), STATUS_JOB,
            "dir/job.yaml:18:3: optimizer.eps: does not apply with optimizer.type sgd, only with adamw");
}

static void one_of_several_keys_given_with_set_drops_the_others(void **state)
{
    (void)state;
    Gacc__V1__JobSpec *job = accepted_with(gpt, SETS("job.epochs=2", "batch.tokens=96"));
    assert_true(job->job->steps == 0 && job->job->epochs == 2 && job->batch->global == 12);
    assert_string_equal(notices, "gaccd: --set job.epochs drops job.steps of dir/job.yaml\n"
                                 "gaccd: --set batch.tokens drops batch.global of dir/job.yaml\n");
    release(job);
    refused(gpt, SETS("job.epochs=2", "job.tokens=3"), STATUS_JOB,
            "--set job.epochs: is given as well as job.tokens; a job has one of steps, tokens and epochs");
}

static void the_output_option_beats_everything(void **state)
{
    (void)state;
    struct job_overrides overrides = *SETS("job.output=elsewhere");
    Gacc__V1__JobSpec *job = accepted_with(gpt, &overrides);
    assert_string_equal(job->job->output, "elsewhere");
    release(job);
    overrides.output = "here";
    job = accepted_with(gpt, &overrides);
    assert_string_equal(job->job->output, "here");
    release(job);
}

static void fewer_micro_batches_than_ranks_are_refused(void **state)
{
    (void)state;
    release(accepted_with(tape, &(struct job_overrides){.ranks = 1}));
    refused(
        tape, &(struct job_overrides){.ranks = 2}, STATUS_JOB,
        "dir/job.yaml:4:27: batch.micro: 4 makes 1 micro-batch of batch.global 4, fewer than 2 ranks: batch.micro 2 "
        "would do, or batch.global 8");
    struct job_overrides overrides = *SETS("batch.micro=3");
    overrides.ranks = 2;
    release(accepted_with(tape, &overrides));
    overrides.ranks = 4;
    refused(tape, &overrides, STATUS_JOB,
            "--set batch.micro: 3 makes 2 micro-batches of batch.global 4, fewer than 4 ranks: batch.micro 1 would do, "
            "or batch.global 12");
    static const char *const fitting[] = {"batch.micro=1", "batch.global=12"}; /* what it says is true */
    for (size_t i = 0; i < 2; i++) {
        struct job_overrides better = *SETS("batch.micro=3", fitting[i]);
        better.ranks = 4;
        release(accepted_with(tape, &better));
    }
    refused(tape, &(struct job_overrides){.ranks = 5}, STATUS_JOB,
            "dir/job.yaml:4:17: batch.global: 4 sequences cannot be shared by 5 ranks, one each at least");
    refused(with(gpt, "global: 12", "tokens: 24"), &(struct job_overrides){.ranks = 5}, STATUS_JOB,
            "dir/job.yaml:13:11: batch.tokens: 3 sequences cannot be shared by 5 ranks, one each at least");
}

static void the_digest_is_that_of_the_work_not_of_the_place(void **state)
{
    (void)state;
    Gacc__V1__JobSpec *job = accepted(gpt),
                      *moved = accepted_with(gpt, SETS("job.output=x", "control.timeout=3 s", "verify=required")),
                      *other = accepted_with(gpt, SETS("optimizer.lr=3.0001e-4"));
    assert_int_equal(moved->verify, GACC__V1__VERIFY__VERIFY_REQUIRED);
    assert_memory_equal(job->digest.data, moved->digest.data, 32);
    assert_memory_not_equal(job->digest.data, other->digest.data, 32);
    release(job);
    release(moved);
    release(other);
}

static void a_file_that_cannot_be_read_has_its_status(void **state)
{
    (void)state;
    Gacc__V1__JobSpec *job;
    struct error error;
    assert_int_equal(job_load(&job, "no/such.yaml", NULL, NULL, &error), -(int)STATUS_MISSING);
    assert_string_equal(error.text, "no/such.yaml: No such file or directory");
    assert_int_equal(job_load(&job, "/tmp", NULL, NULL, &error), -(int)STATUS_JOB);
    assert_string_equal(error.text, "/tmp: is a directory, not a job file");
    assert_int_equal(job_load(&job, "/dev/zero", NULL, NULL, &error), -(int)STATUS_JOB);
    assert_string_equal(error.text, "/dev/zero: is larger than 1048576 bytes");
}

static void expect_print(const char *set, uint32_t ranks, const char *part)
{
    Gacc__V1__JobSpec *job = accepted_with(gpt, SETS(set));
    char out[8192] = "";
    FILE *stream = fmemopen(out, sizeof out, "w");
    assert_int_equal(job_print(job, ranks, stream), 0);
    fclose(stream);
    if (!strstr(out, part)) fail_msg("not in what is printed: %s\n%s", part, out);
    release(job);
}

static void the_effective_job_shows_the_batch_in_numbers(void **state)
{
    (void)state;
    expect_print("batch.micro=3", 3,
                 "#   B 12 sequences are the global batch of one optimizer step: 96 tokens per step\n"
                 "#   b 3 sequences are a micro-batch\n"
                 "#   M 4 micro-batches make a step\n"
                 "#   K 2 micro-batches a step on rank 0\n"
                 "#   K 1 micro-batches a step on ranks 1 to 2\n");
    expect_print("batch.micro=5", 3,
                 "#   M 3 micro-batches make a step, the last of 2 sequences\n"
                 "#   K 1 micro-batches a step on ranks 0 to 2\n");
    expect_print("batch.micro=5", 0, "#   M 3 micro-batches make a step, the last of 2 sequences\n\njob:\n");
    expect_print("batch.micro=5", 1, "  micro: 5  # sequences (b)\n");
}

/* nanoGPT's numbers for a CPU. */
static void the_recipe_for_characters_is_nanogpts(void **state)
{
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s/deploy/jobs/shakespeare-char.yaml", GACC_SOURCE);
    setenv("GACC_TEXT", text_path, 1);
    Gacc__V1__JobSpec *job;
    struct error error;
    if (job_load(&job, path, &(struct job_overrides){.ranks = 2}, NULL, &error) != 0) fail_msg("%s", error.text);
    assert_string_equal(job->job->output, "runs/shakespeare-char");
    assert_true(job->model->layers == 4 && job->model->heads == 4 && job->model->width == 128);
    assert_true(job->model->context == 64 && !job->model->bias && job->model->dropout == 0);
    assert_true(job_tokens_per_step(job) == 768 && job->job->steps == 2000);
    assert_true(job->optimizer->lr == 1e-3 && job->optimizer->beta1 == 0.9 && job->optimizer->beta2 == 0.99);
    assert_true(job->optimizer->weight_decay == 0.1 && job->optimizer->clip_norm == 1);
    assert_int_equal(job->schedule->type, GACC__V1__SCHEDULE_TYPE__SCHEDULE_COSINE);
    assert_true(job->schedule->warmup == 100 && job->schedule->total == 2000 && job->schedule->minimum == 1e-4);
    release(job);
}

static int open_files(void **state)
{
    if (scratch_open(state) != 0) return -1;
    text_path = scratch_file("a.txt", "to be or not to be", 18);
    other_path = scratch_file("b.txt", "that is the question", 20);
    return setenv("TEXT", text_path, 1);
}

static int close_files(void **state)
{
    free(text_path);
    free(other_path);
    return scratch_close(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_that_is_no_count_is_refused),
        cmocka_unit_test(numbers_are_numbers_in_any_usual_notation),
        cmocka_unit_test(numbers_that_are_texts_are_refused),
        cmocka_unit_test(booleans_and_texts_are_what_they_look_like),
        cmocka_unit_test(a_slip_of_the_pen_is_named_and_mended),
        cmocka_unit_test(several_optimizers_are_a_list_with_names_and_patterns),
        cmocka_unit_test(what_this_version_lacks_is_called_by_its_name),
        cmocka_unit_test(a_key_that_does_not_apply_is_refused_with_the_reason),
        cmocka_unit_test(yaml_that_a_job_does_not_need_is_refused),
        cmocka_unit_test(byte_order_mark_carriage_returns_and_directives_are_harmless),
        cmocka_unit_test(a_job_has_one_length),
        cmocka_unit_test(tokens_may_state_the_global_batch),
        cmocka_unit_test(defaults_are_those_of_the_manual),
        cmocka_unit_test(a_profile_sets_the_loss_scale),
        cmocka_unit_test(loss_scales_that_cannot_work_are_refused),
        cmocka_unit_test(clip_norm_is_null_or_positive),
        cmocka_unit_test(numbers_that_do_not_fit_each_other_are_refused),
        cmocka_unit_test(numbers_that_fp32_cannot_hold_are_refused_where_it_is_what_updates),
        cmocka_unit_test(a_vocabulary_of_65536_fits_u16),
        cmocka_unit_test(the_schedule_ends_with_the_job),
        cmocka_unit_test(linear_scaling_multiplies_once_by_global_over_base),
        cmocka_unit_test(a_rate_that_looks_multiplied_by_k_is_doubted),
        cmocka_unit_test(paths_take_variables_and_globs),
        cmocka_unit_test(validation_is_a_fraction_or_paths),
        cmocka_unit_test(times_have_units),
        cmocka_unit_test(endpoints_are_sockets),
        cmocka_unit_test(other_hosts_come_with_tls_or_by_a_word_in_the_job),
        cmocka_unit_test(keys_of_tls_belong_together),
        cmocka_unit_test(set_beats_the_file),
        cmocka_unit_test(set_names_its_path_in_errors),
        cmocka_unit_test(another_precision_drops_the_loss_scale_and_says_so),
        cmocka_unit_test(a_choice_given_with_set_drops_what_the_file_has_for_another),
        cmocka_unit_test(one_of_several_keys_given_with_set_drops_the_others),
        cmocka_unit_test(the_output_option_beats_everything),
        cmocka_unit_test(fewer_micro_batches_than_ranks_are_refused),
        cmocka_unit_test(the_digest_is_that_of_the_work_not_of_the_place),
        cmocka_unit_test(a_file_that_cannot_be_read_has_its_status),
        cmocka_unit_test(the_effective_job_shows_the_batch_in_numbers),
        cmocka_unit_test(the_recipe_for_characters_is_nanogpts),
    };
    return cmocka_run_group_tests(tests, open_files, close_files);
}
