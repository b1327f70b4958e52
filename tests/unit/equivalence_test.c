/*
 * One global batch, cut in every way: B sequences as (b, K, N). A small GPT with dropout on real kernels, N sessions
 * side by side. F3, A2, A12, H3: the split changes rounding and nothing else.
 */
#include "tests/unit/session_fixture.h"

#define PARAMETERS_MAX 20000

struct split {
    uint32_t micro, ranks;
};

static double gradient[PARAMETERS_MAX], parameters[PARAMETERS_MAX]; /* of the job that ran last */
static uint64_t parameter_count;
static Gacc__V1__Compute precision;

/* Each rank puts its own ranges in place. */
static void keep(struct actor *actor, uint64_t step)
{
    (void)step;
    struct session *session = actor->session;
    struct session_view view;
    uint64_t at = 0;
    if (session_look(session, &view, NULL)) abort();
    if (session->map.parameters > PARAMETERS_MAX) abort();
    if (actor->rank == 0) parameter_count = session->map.parameters;
    for (uint32_t bucket = 0; bucket < session->map.bucket_count; bucket++) {
        struct range own = shard_map_range(&session->map, bucket, actor->rank);
        for (uint64_t i = own.begin; i < own.end; i++, at++) {
            gradient[i] = value_at(view.shard, session->wide_type, at) / actor->play->attempts[step].scale;
            parameters[i] = value_at(view.master, session->wide_type, at);
        }
    }
}

static void small_gpt(struct play *play)
{
    char text[2000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = "the cat sat on the mat, and so on. "[(i * i / 7 + i) % 35];
    free(play->train);
    play->train_list[0] = play->train = scratch_file("train.txt", text, sizeof text);
    play->data.format = GACC__V1__DATA_FORMAT__FORMAT_BYTES;
    play->data.order = GACC__V1__ORDER__ORDER_SHUFFLED;
    Gacc__V1__ModelSection *model = &play->model;
    model->n_init_values = 0;
    model->type = GACC__V1__MODEL_TYPE__MODEL_GPT;
    model->layers = 2;
    model->heads = 2;
    model->width = 16;
    model->context = 9;
    model->vocab = 128;
    model->pad_vocab = 128;
    model->tie = true; /* no bias: that of the keys has a gradient of pure rounding, which AdamW would blow up */
    model->dropout = 0.1;
    model->activation = GACC__V1__ACTIVATION__ACTIVATION_GELU;
    model->init_std = 0.2;
}

/* precision.compute, as the whole job has it; steps of B = `global` sequences. */
static void train(const struct scenario *base, struct split split)
{
    struct scenario scenario = *base;
    scenario.csv = "";
    scenario.adjust = small_gpt;
    scenario.after_step = keep;
    scenario.compute = precision;
    scenario.micro = split.micro;
    scenario.ranks = split.ranks;
    scenario.epochs = 100;
    struct play *play = play_well(&scenario);
    assert_int_equal(play->optimizer_steps, base->stop_after);
    free(play);
}

static void copy(double *to, const double *from)
{
    memcpy(to, from, parameter_count * sizeof *to);
}

static double distance(const double *a, const double *b)
{
    double difference = 0, norm = 0;
    for (uint64_t i = 0; i < parameter_count; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return sqrt(difference / norm);
}

/* The share of parameters within the tolerances. */
static double share_close(const double *a, const double *b, double absolute, double relative)
{
    uint64_t close = 0;
    for (uint64_t i = 0; i < parameter_count; i++) close += fabs(a[i] - b[i]) <= absolute + relative * fabs(b[i]);
    return (double)close / (double)parameter_count;
}

static const struct split splits[] = {{16, 1}, {4, 1}, {4, 2}, {2, 2}, {1, 4}};
#define SPLITS (sizeof splits / sizeof *splits)

static void gradients_of_every_split_agree_in_fp64(void **state)
{
    (void)state;
    static double whole[PARAMETERS_MAX];
    struct scenario scenario = {.global = 16, .stop_after = 1, .lr = 0.1};
    precision = GACC__V1__COMPUTE__COMPUTE_FP64;
    for (size_t i = 0; i < SPLITS; i++) {
        train(&scenario, splits[i]);
        if (i == 0) copy(whole, gradient);
        assert_true(distance(gradient, whole) <= 1e-12);
    }
}

/* M = 7 over three ranks: 3, 2 and 2, the last one short. */
static void an_uneven_split_agrees_too(void **state)
{
    (void)state;
    static double whole[PARAMETERS_MAX];
    struct scenario scenario = {.global = 13, .stop_after = 1, .lr = 0.1};
    precision = GACC__V1__COMPUTE__COMPUTE_FP64;
    train(&scenario, (struct split){13, 1});
    copy(whole, gradient);
    train(&scenario, (struct split){2, 3});
    assert_true(distance(gradient, whole) <= 1e-12);
}

static void twenty_sgd_steps_agree_in_fp32(void **state)
{
    (void)state;
    static double whole[PARAMETERS_MAX];
    struct scenario scenario = {.global = 16, .stop_after = 20, .lr = 0.1};
    precision = GACC__V1__COMPUTE__COMPUTE_FP32;
    for (size_t i = 0; i < SPLITS; i++) {
        train(&scenario, splits[i]);
        if (i == 0) copy(whole, parameters);
        assert_true(share_close(parameters, whole, 1e-5, 1e-4) == 1);
    }
}

static double warm_up(uint64_t applied)
{
    return 1e-3 * (double)(applied + 1) / 21;
}

static void twenty_adamw_steps_agree_in_fp32(void **state)
{
    (void)state;
    static double whole[PARAMETERS_MAX];
    struct scenario scenario = {
        .global = 16, .stop_after = 20, .adamw = true, .lr = 1e-3, .schedule = warm_up, .weight_decay = 0.1, .clip = 1};
    precision = GACC__V1__COMPUTE__COMPUTE_FP32;
    for (size_t i = 0; i < SPLITS; i++) {
        train(&scenario, splits[i]);
        if (i == 0) copy(whole, parameters);
        assert_true(share_close(parameters, whole, 1e-5, 1e-4) >= 0.999);
    }
}

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* K1's tolerance, and no factor of K, N or S: the ratio of norms is 1. */
static void fp16_with_a_scale_follows_fp32(void **state)
{
    (void)state;
    static double whole[PARAMETERS_MAX], relative[PARAMETERS_MAX];
    struct scenario scenario = {.global = 16, .stop_after = 1, .lr = 0.1};
    precision = GACC__V1__COMPUTE__COMPUTE_FP32;
    train(&scenario, (struct split){16, 1});
    copy(whole, gradient);
    precision = GACC__V1__COMPUTE__COMPUTE_FP16;
    scenario.scale = 1024;
    for (size_t i = 0; i < SPLITS; i++) {
        train(&scenario, splits[i]);
        double found = 0, wanted = 0;
        uint64_t count = 0;
        for (uint64_t p = 0; p < parameter_count; p++) {
            found += gradient[p] * gradient[p];
            wanted += whole[p] * whole[p];
            if (whole[p] < 0 || whole[p] > 0) relative[count++] = fabs(gradient[p] - whole[p]) / fabs(whole[p]);
        }
        qsort(relative, count, sizeof *relative, ascending);
        assert_true(relative[count / 2] < 0.05);
        assert_near(sqrt(found / wanted), 1, 0.01);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_every_split_agree_in_fp64), cmocka_unit_test(an_uneven_split_agrees_too),
        cmocka_unit_test(twenty_sgd_steps_agree_in_fp32),         cmocka_unit_test(twenty_adamw_steps_agree_in_fp32),
        cmocka_unit_test(fp16_with_a_scale_follows_fp32),
    };
    return cmocka_run_group_tests_name("equivalence", tests, scratch_open, scratch_close);
}
