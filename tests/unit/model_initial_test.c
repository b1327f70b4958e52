/* First values: keyed numbers, values of the job, and safetensors files, sound and damaged. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/scratch.h"
#include "worker/model.h"

static Gacc__V1__ModelSection linear(void)
{
    Gacc__V1__ModelSection spec = GACC__V1__MODEL_SECTION__INIT;
    spec.type = GACC__V1__MODEL_TYPE__MODEL_LINEAR;
    spec.inputs = 3;
    spec.bias = 1;
    spec.loss = GACC__V1__LOSS__LOSS_HALF_MSE;
    return spec;
}

/* wte [2, 2], wpe [1, 2], then one block of twelve tensors (six without biases), ln_f. */
static Gacc__V1__ModelSection gpt(void)
{
    Gacc__V1__ModelSection spec = GACC__V1__MODEL_SECTION__INIT;
    spec.type = GACC__V1__MODEL_TYPE__MODEL_GPT;
    spec.layers = spec.heads = spec.context = 1;
    spec.width = spec.vocab = 2;
    spec.tie = 1;
    spec.init_std = 0.02;
    return spec;
}

/* All first values of a model with this spec, or the error. */
static int read_all_in(enum dtype type, const Gacc__V1__ModelSection *spec, uint64_t seed, double *values, size_t room,
                       struct error *error)
{
    struct model *model;
    struct model_initial *initial = NULL;
    assert_int_equal(model_open(&model, spec, type, error), 0);
    assert_true(model->table.parameters <= room);
    int rc = model_initial_open(&initial, model, seed, NULL, 1, error);
    if (rc == 0) rc = model_initial_read(initial, 0, model->table.parameters, values, error);
    model_initial_close(initial);
    model_close(model);
    return rc;
}

static int read_all(const Gacc__V1__ModelSection *spec, uint64_t seed, double *values, size_t room, struct error *error)
{
    return read_all_in(DTYPE_FP32, spec, seed, values, room, error);
}

/* --- keyed numbers --------------------------------------------------------------------------------------------------
 */

static void values_do_not_depend_on_the_cut_of_the_range_or_on_threads(void **state)
{
    (void)state;
    enum { N = 1000 };
    Gacc__V1__ModelSection spec = gpt();
    spec.vocab = 400;
    spec.bias = 1;
    double whole[N], piece[N];
    struct model *model;
    struct model_initial *initial;
    assert_int_equal(read_all(&spec, 7, whole, N, NULL), 0);
    assert_int_equal(model_open(&model, &spec, DTYPE_FP32, NULL), 0);
    for (int threads = 1; threads < 5; threads++) {
        assert_int_equal(model_initial_open(&initial, model, 7, NULL, threads, NULL), 0);
        for (uint64_t step = 1; step < 1200; step += 37)
            for (uint64_t begin = 0; begin < model->table.parameters; begin += step) {
                uint64_t end = begin + step < model->table.parameters ? begin + step : model->table.parameters;
                assert_int_equal(model_initial_read(initial, begin, end, piece, NULL), 0);
                assert_memory_equal(piece, whole + begin, (end - begin) * sizeof *piece);
            }
        model_initial_close(initial);
    }
    model_close(model);
}

static void normals_have_the_documented_mean_deviation_and_tails(void **state)
{
    (void)state;
    enum { N = 100000 };
    static double values[2 * N + 100], other[2 * N + 100];
    Gacc__V1__ModelSection spec = gpt();
    spec.vocab = N;
    assert_int_equal(read_all(&spec, 1337, values, 2 * N + 100, NULL), 0);
    assert_int_equal(read_all(&spec, 1338, other, 2 * N + 100, NULL), 0);
    double sum = 0, squares = 0, product = 0, beyond = 0;
    for (size_t i = 0; i < 2 * N; i++) {
        double z = values[i] / 0.02;
        sum += z;
        squares += z * z;
        product += z * other[i] / 0.02;
        beyond += fabs(z) > 3;
    }
    assert_true(fabs(sum / (2 * N)) < 0.01);
    assert_true(fabs(squares / (2 * N) - 1) < 0.015);
    assert_true(fabs(product / (2 * N)) < 0.01);              /* another seed, other numbers */
    assert_true(fabs(beyond / (2 * N) - 0.0026998) < 0.0005); /* P(|z| > 3) */
}

static void biases_start_at_0_and_norms_at_1(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = gpt();
    spec.bias = 1;
    struct model *model;
    double values[200];
    assert_int_equal(model_open(&model, &spec, DTYPE_FP32, NULL), 0);
    assert_int_equal(read_all(&spec, 1, values, 200, NULL), 0);
    const struct tensor *bias = tensor_find(&model->table, "h.0.mlp.c_fc.bias"),
                        *norm = tensor_find(&model->table, "ln_f.weight");
    for (uint64_t i = 0; i < bias->size; i++) assert_true(values[bias->begin + i] == 0);
    for (uint64_t i = 0; i < norm->size; i++) assert_true(values[norm->begin + i] == 1);
    model_close(model);
}

static void uniform_values_stay_within_one_over_root_in(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = linear();
    double values[10001], largest = 0, squares = 0;
    spec.inputs = 10000;
    assert_int_equal(read_all(&spec, 5, values, 10001, NULL), 0);
    for (size_t i = 0; i < 10001; i++) {
        largest = fmax(largest, fabs(values[i]));
        squares += values[i] * values[i] / 10001;
    }
    assert_true(largest < 0.01 && largest > 0.0099);
    assert_true(fabs(squares * 3e4 - 1) < 0.03);
}

/* --- values of the job ----------------------------------------------------------------------------------------------
 */

static int read_given(const char *name, size_t count, double *values, struct error *error)
{
    static double given[] = {10, 20, 30, 40};
    Gacc__V1__ModelSection spec = linear();
    Gacc__V1__TensorValues tensor = GACC__V1__TENSOR_VALUES__INIT, *tensors[] = {&tensor};
    char text[64];
    snprintf(text, sizeof text, "%s", name);
    tensor.name = text;
    tensor.n_values = count;
    tensor.values = given;
    spec.n_init_values = 1;
    spec.init_values = tensors;
    return read_all(&spec, 3, values, 4, error);
}

static void given_values_replace_those_of_their_tensor_alone(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = linear();
    double values[4], without[4];
    assert_int_equal(read_all(&spec, 3, without, 4, NULL), 0);
    assert_int_equal(read_given("weight", 3, values, NULL), 0);
    assert_true(values[0] == 10 && values[1] == 20 && values[2] == 30);
    assert_true(values[3] == without[3]);
}

static void unknown_name_and_wrong_count_are_refused_with_the_nearest_and_both_numbers(void **state)
{
    (void)state;
    struct error error;
    double values[4];
    assert_int_equal(read_given("wieght", 3, values, &error), -STATUS_JOB);
    assert_string_equal(error.text, "model.init.values.wieght: no tensor of this name; the nearest is weight");
    assert_int_equal(read_given("weight", 4, values, &error), -STATUS_JOB);
    assert_string_equal(error.text, "model.init.values.weight: 4 values for a tensor of 3");
}

static void values_that_their_type_cannot_hold_are_refused(void **state)
{
    (void)state;
    double given[] = {3.4e38, 1, 3.5e38}, values[64];
    struct error error;
    Gacc__V1__ModelSection spec = linear();
    Gacc__V1__TensorValues tensor = {PROTOBUF_C_MESSAGE_INIT(&gacc__v1__tensor_values__descriptor), (char[]){"weight"},
                                     3, given};
    Gacc__V1__TensorValues *tensors[] = {&tensor};
    spec.n_init_values = 1;
    spec.init_values = tensors;
    assert_int_equal(read_all_in(DTYPE_FP64, &spec, 3, values, 64, &error), 0);
    for (enum dtype type = DTYPE_FP32; type <= DTYPE_FP16; type++) { /* masters are fp32 */
        assert_int_equal(read_all_in(type, &spec, 3, values, 64, &error), -STATUS_JOB);
        assert_string_equal(error.text,
                            "model.init.values: tensor weight: element 2 is 3.5e+38, no finite number of fp32");
    }
    spec = gpt();
    spec.init_std = 1e300;
    assert_int_equal(read_all_in(DTYPE_FP64, &spec, 3, values, 64, &error), 0);
    assert_int_equal(read_all(&spec, 3, values, 64, &error), -STATUS_JOB);
    assert_non_null(strstr(error.text, "model.init_std: tensor wte.weight: element 0 is "));
}

/* --- files -----------------------------------------------------------------------------------------------------------
 */

/* A safetensors file of this header and `floats` numbers 1, 2, 3 …; F32 unless the header says otherwise. */
static char *file_of(const char *header, size_t floats)
{
    char bytes[8192];
    uint64_t length = strlen(header);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < floats; i++) {
        float value = (float)(i + 1);
        memcpy(bytes + 8 + length + 4 * i, &value, 4);
    }
    return scratch_file("initial.safetensors", bytes, 8 + length + 4 * floats);
}

static int read_file(Gacc__V1__ModelSection spec, const char *header, size_t floats, double *values, size_t room,
                     struct error *error)
{
    spec.init_file = file_of(header, floats);
    int rc = read_all(&spec, 3, values, room, error);
    free(spec.init_file);
    return rc;
}

#define ROW(name, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":[" shape "],\"data_offsets\":[" #begin "," #end "]}"

static void file_gives_every_tensor_wherever_its_data_lie(void **state)
{
    (void)state;
    double values[4];
    /* bias first, and a header whose length leaves the data unaligned */
    assert_int_equal(
        read_file(linear(), "{" ROW("bias", "1", 0, 4) ",  " ROW("weight", "1,3", 4, 16) "}", 4, values, 4, NULL), 0);
    assert_true(values[0] == 2 && values[1] == 3 && values[2] == 4 && values[3] == 1);
}

static void half_precision_files_are_read_exactly(void **state)
{
    (void)state;
    const struct {
        const char *type;
        uint16_t bits[4];
    } cases[] = {{"F16", {0x3c00, 0xc500, 0x0001, 0x7bff}}, {"BF16", {0x3f80, 0xc0a0, 0x0001, 0x477f}}};
    const double expected[][4] = {{1, -5, 0x1p-24, 65504}, {1, -5, 0x1p-133, 65280}};
    for (size_t i = 0; i < 2; i++) {
        Gacc__V1__ModelSection spec = linear();
        char header[256], bytes[512];
        double values[4];
        uint64_t length = (uint64_t)snprintf(header, sizeof header,
                                             "{\"weight\":{\"dtype\":\"%s\",\"shape\":[1,3],\"data_offsets\":[0,6]},"
                                             "\"bias\":{\"dtype\":\"%s\",\"shape\":[1],\"data_offsets\":[6,8]}}",
                                             cases[i].type, cases[i].type);
        memcpy(bytes, &length, 8);
        memcpy(bytes + 8, header, length);
        memcpy(bytes + 8 + length, cases[i].bits, 8);
        spec.init_file = scratch_file("half.safetensors", bytes, 8 + length + 8);
        assert_int_equal(read_all(&spec, 3, values, 4, NULL), 0);
        for (size_t v = 0; v < 4; v++) assert_true(values[v] == expected[i][v]);
        free(spec.init_file);
    }
}

static void files_with_what_is_no_finite_number_are_refused(void **state)
{
    (void)state;
    static const char *const said[] = {"inf", "-inf", "nan"};
    const double bad[] = {(double)INFINITY, -(double)INFINITY, (double)NAN};
    for (size_t i = 0; i < 3; i++) {
        Gacc__V1__ModelSection spec = linear();
        static const char header[] = "{\"weight\":{\"dtype\":\"F64\",\"shape\":[1,3],\"data_offsets\":[8,32]},"
                                     "\"bias\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}";
        const double numbers[] = {1, 2, bad[i], 4};
        char bytes[512];
        uint64_t length = sizeof header - 1;
        memcpy(bytes, &length, 8);
        memcpy(bytes + 8, header, length);
        memcpy(bytes + 8 + length, numbers, sizeof numbers);
        spec.init_file = scratch_file("poisoned.safetensors", bytes, 8 + length + sizeof numbers);
        double values[4];
        struct error error;
        char words[64];
        snprintf(words, sizeof words, "tensor weight: element 1 is %s, no finite number", said[i]);
        assert_int_equal(read_all_in(DTYPE_FP64, &spec, 3, values, 4, &error), -STATUS_DATA);
        assert_non_null(strstr(error.text, spec.init_file));
        assert_non_null(strstr(error.text, words));
        free(spec.init_file);
    }
}

static void damaged_or_unfitting_files_are_refused_with_file_and_tensor(void **state)
{
    (void)state;
    const struct {
        const char *header;
        size_t floats;
        const char *says;
    } cases[] = {
        {"{" ROW("weight", "1,3", 0, 12) "}", 3, "tensor bias is missing"},
        {"{" ROW("weight", "3,1", 0, 12) "," ROW("bias", "1", 12, 16) "}", 4,
         "tensor weight has shape [3, 1], the model's is [1, 3]"},
        {"{" ROW("weight", "1,3", 0, 12) "," ROW("bias", "1", 12, 16) "," ROW("wieght", "1", 16, 20) "}", 5,
         "no tensor wieght; the nearest is weight"},
        {"{" ROW("weight", "1,3", 0, 12) "," ROW("bias", "1", 12, 16) "}", 3, ""},      /* cut short */
        {"{" ROW("weight", "1,3", 0, 12) "," ROW("bias", "1", 12, 16) "}", 5, ""},      /* too long */
        {"{" ROW("weight", "1,3", 0, 12) "," ROW("bias", "1", 8, 12) "}", 3, ""},       /* overlapping */
        {"{" ROW("weight", "1,3", 0, 12) "," ROW("bias", "1", 12, 4000000) "}", 4, ""}, /* beyond the file */
        {"{" ROW("weight", "1,3", 0, 12) "," ROW("bias", "1", 12, 16), 4, ""},          /* bad JSON */
        {"{" ROW("weight", "1,3", 0, 12) "," ROW("weight", "1,3", 12, 24) "}", 6, ""},  /* twice */
        {"", 0, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error error = {0};
        double values[4];
        assert_int_equal(read_file(linear(), cases[i].header, cases[i].floats, values, 4, &error), -STATUS_DATA);
        assert_non_null(strstr(error.text, "initial.safetensors"));
        if (!strstr(error.text, cases[i].says)) fail_msg("case %zu: %s", i, error.text);
    }
}

static void header_longer_than_the_file_and_missing_file_are_refused(void **state)
{
    (void)state;
    struct error error;
    double values[4];
    Gacc__V1__ModelSection spec = linear();
    uint64_t length = UINT64_C(1) << 62;
    spec.init_file = scratch_file("huge.safetensors", &length, 8);
    assert_int_equal(read_all(&spec, 3, values, 4, &error), -STATUS_DATA);
    assert_non_null(strstr(error.text, "huge.safetensors"));
    free(spec.init_file);
    char absent[] = "/nonexistent/x.safetensors";
    spec.init_file = absent;
    assert_int_equal(read_all(&spec, 3, values, 4, &error), -STATUS_MISSING);
    assert_non_null(strstr(error.text, absent));
}

/* The nine tensors of gpt() without biases: 2·2 + 2 + 2 + 12 + 4 + 2 + 16 + 16 + 2 = 60 numbers. */
// clang-format off
#define BLOCK(prefix)                                  \
    ROW(prefix "wte.weight", "2,2", 0, 16) ","          \
    ROW(prefix "wpe.weight", "1,2", 16, 24) ","         \
    ROW(prefix "h.0.ln_1.weight", "2", 24, 32) ","      \
    ROW(prefix "h.0.attn.c_attn.weight", "2,6", 32, 80) "," \
    ROW(prefix "h.0.attn.c_proj.weight", "2,2", 80, 96) "," \
    ROW(prefix "h.0.ln_2.weight", "2", 96, 104) ","     \
    ROW(prefix "h.0.mlp.c_fc.weight", "2,8", 104, 168) "," \
    ROW(prefix "h.0.mlp.c_proj.weight", "8,2", 168, 232) "," \
    ROW(prefix "ln_f.weight", "2", 232, 240)
// clang-format on

static void tied_head_may_be_stored_twice_if_equal_and_once_for_an_untied_model(void **state)
{
    (void)state;
    struct error error;
    double values[64];
    Gacc__V1__ModelSection untied = gpt();
    untied.tie = 0;
    assert_int_equal(read_file(gpt(), "{" BLOCK("") "}", 60, values, 64, NULL), 0);
    assert_true(values[0] == 1 && values[59] == 60);
    assert_int_equal(read_file(gpt(), "{" BLOCK("transformer.") "}", 60, values, 64, NULL), 0);
    assert_int_equal(read_file(untied, "{" BLOCK("") "}", 60, values, 64, NULL), 0);
    assert_true(values[60] == 1 && values[63] == 4);
    assert_int_equal(
        read_file(untied, "{" BLOCK("") "," ROW("lm_head.weight", "2,2", 240, 256) "}", 64, values, 64, NULL), 0);
    assert_true(values[60] == 61 && values[63] == 64);
    assert_int_equal(
        read_file(gpt(), "{" BLOCK("") "," ROW("lm_head.weight", "2,2", 240, 256) "}", 64, values, 64, &error),
        -STATUS_DATA);
    assert_non_null(strstr(error.text, "lm_head.weight differs from wte.weight"));
    assert_int_equal(
        read_file(gpt(), "{" BLOCK("") "," ROW("lm_head.weight", "4", 240, 256) "}", 64, values, 64, &error),
        -STATUS_DATA);
    assert_non_null(strstr(error.text, "lm_head.weight has shape [4], the model's is [2, 2]"));
}

/* wte, then lm_head with the same numbers, then the rest. */
static void equal_tied_head_is_accepted(void **state)
{
    (void)state;
    Gacc__V1__ModelSection spec = gpt();
    char bytes[4096];
    double values[64];
    static const char header[] = "{" BLOCK("") "," ROW("lm_head.weight", "2,2", 240, 256) "}";
    float data[64];
    uint64_t length = sizeof header - 1;
    for (size_t i = 0; i < 64; i++) data[i] = (float)(i < 60 ? i + 1 : i - 59);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    memcpy(bytes + 8 + length, data, sizeof data);
    spec.init_file = scratch_file("tied.safetensors", bytes, 8 + length + sizeof data);
    assert_int_equal(read_all(&spec, 3, values, 64, NULL), 0);
    free(spec.init_file);
}

static void biases_of_a_file_are_ignored_when_zero_and_refused_otherwise(void **state)
{
    (void)state;
    struct error error;
    double values[64];
    Gacc__V1__ModelSection spec = gpt();
    static const char header[] = "{" BLOCK("") "," ROW("ln_f.bias", "2", 240, 248) "}";
    assert_int_equal(read_file(spec, header, 62, values, 64, &error), -STATUS_DATA);
    assert_non_null(strstr(error.text, "tensor ln_f.bias is not zero, and the model has no biases"));
    char bytes[4096] = {0}; /* all values zero */
    uint64_t length = sizeof header - 1;
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    spec.init_file = scratch_file("zeros.safetensors", bytes, 8 + length + 248);
    assert_int_equal(read_all(&spec, 3, values, 64, NULL), 0);
    free(spec.init_file);
}

static void causal_masks_of_older_files_are_passed_over(void **state)
{
    (void)state;
    double values[64];
    assert_int_equal(
        read_file(gpt(), "{" BLOCK("") "," ROW("h.0.attn.bias", "1,1,1,1", 240, 244) "}", 61, values, 64, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_do_not_depend_on_the_cut_of_the_range_or_on_threads),
        cmocka_unit_test(normals_have_the_documented_mean_deviation_and_tails),
        cmocka_unit_test(biases_start_at_0_and_norms_at_1),
        cmocka_unit_test(uniform_values_stay_within_one_over_root_in),
        cmocka_unit_test(given_values_replace_those_of_their_tensor_alone),
        cmocka_unit_test(unknown_name_and_wrong_count_are_refused_with_the_nearest_and_both_numbers),
        cmocka_unit_test(values_that_their_type_cannot_hold_are_refused),
        cmocka_unit_test(file_gives_every_tensor_wherever_its_data_lie),
        cmocka_unit_test(half_precision_files_are_read_exactly),
        cmocka_unit_test(files_with_what_is_no_finite_number_are_refused),
        cmocka_unit_test(damaged_or_unfitting_files_are_refused_with_file_and_tensor),
        cmocka_unit_test(header_longer_than_the_file_and_missing_file_are_refused),
        cmocka_unit_test(tied_head_may_be_stored_twice_if_equal_and_once_for_an_untied_model),
        cmocka_unit_test(equal_tied_head_is_accepted),
        cmocka_unit_test(biases_of_a_file_are_ignored_when_zero_and_refused_otherwise),
        cmocka_unit_test(causal_masks_of_older_files_are_passed_over),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
