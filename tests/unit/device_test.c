/*
 * Whole jobs on a device whose memory is not the host's give the bits of the same jobs on the CPU, whatever is
 * recorded, staged, or done beside the kernels.
 */
#include "tests/unit/fake_device.h"
#include "tests/unit/session_fixture.h"

#define FP32 GACC__V1__COMPUTE__COMPUTE_FP32
#define BF16 GACC__V1__COMPUTE__COMPUTE_BF16
#define FP16 GACC__V1__COMPUTE__COMPUTE_FP16

/* --- jobs ---------------------------------------------------------------------------------------------------- */

static void small_gpt(struct play *play)
{
    char text[2000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = "the cat sat on the mat, and so on. "[(i * i / 7 + i) % 35];
    free(play->train);
    play->train_list[0] = play->train = scratch_file("train.txt", text, sizeof text);
    play->data.format = GACC__V1__DATA_FORMAT__FORMAT_BYTES;
    Gacc__V1__ModelSection *model = &play->model;
    model->n_init_values = 0;
    model->type = GACC__V1__MODEL_TYPE__MODEL_GPT;
    model->layers = 2;
    model->heads = 2;
    model->width = 16;
    model->context = 9;
    model->vocab = 128;
    model->bias = model->tie = true;
    model->dropout = 0.1;
    model->activation = GACC__V1__ACTIVATION__ACTIVATION_GELU;
    model->init_std = 0.2;
}

static void untied_gpt(struct play *play)
{
    small_gpt(play);
    play->model.tie = false;
    play->model.pad_vocab = 128;
}

static void recomputing_gpt(struct play *play)
{
    small_gpt(play);
    play->job.recompute = GACC__V1__RECOMPUTE__RECOMPUTE_BLOCK;
}

static const char *row_of(char *row, size_t room, uint64_t n, uint32_t values, bool classes)
{
    int at = snprintf(row, room, "%d", n % 4 == 3 ? 0 : 1 + (int)(n % 2));
    for (uint32_t i = 0; i < values; i++) {
        double value = sin((double)(n * 31 + i * 7 + 1));
        if (classes && i + 1 == values) value = (double)(n % 3);
        at += snprintf(row + at, room - (size_t)at, ",%.17g", value);
    }
    return row;
}

static void table(struct play *play, const char *header, uint32_t values, bool classes)
{
    char text[8192], row[256];
    size_t at = (size_t)snprintf(text, sizeof text, "%s\n", header);
    for (uint64_t n = 0; n < 48; n++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s\n", row_of(row, sizeof row, n, values, classes));
    if (at >= sizeof text) abort();
    free(play->train);
    play->train_list[0] = play->train = scratch_file("train.csv", text, at);
    play->model.n_init_values = 0;
}

static uint32_t hidden[] = {6, 5};

static void mlp(struct play *play)
{
    table(play, "weight,x0,x1,x2,y0,y1", 5, false);
    play->model.type = GACC__V1__MODEL_TYPE__MODEL_MLP;
    play->model.inputs = 3;
    play->model.outputs = 2;
    play->model.hidden = hidden;
    play->model.n_hidden = 2;
    play->model.norm = GACC__V1__NORM__NORM_LAYER;
    play->model.activation = GACC__V1__ACTIVATION__ACTIVATION_TANH;
    play->model.loss = GACC__V1__LOSS__LOSS_MSE;
    play->model.bias = true;
}

static void classifier(struct play *play)
{
    mlp(play);
    table(play, "weight,x0,x1,x2,y0", 4, true);
    play->model.outputs = 3;
    play->model.norm = GACC__V1__NORM__NORM_NONE;
    play->model.loss = GACC__V1__LOSS__LOSS_CROSS_ENTROPY;
}

static void linear(struct play *play)
{
    table(play, "weight,x0,x1,x2,y0", 4, false);
    play->model.type = GACC__V1__MODEL_TYPE__MODEL_LINEAR;
    play->model.inputs = 3;
    play->model.bias = true;
}

static void tape(struct play *play)
{
    table(play, "weight,g0,g1,g2,g3,g4", 5, false);
    play->model.type = GACC__V1__MODEL_TYPE__MODEL_TAPE;
    play->model.size = 5;
}

static void (*const jobs[])(struct play *) = {small_gpt, untied_gpt, mlp, classifier, linear, tape};
#define JOBS (sizeof jobs / sizeof *jobs)

/* --- the same bits ------------------------------------------------------------------------------------------- */

static void compare(const struct play *found, const struct play *wanted, uint32_t ranks)
{
    assert_int_equal(found->count, wanted->count);
    for (uint64_t t = 1; t <= wanted->count; t++) {
        const struct attempt *a = &found->attempts[t], *b = &wanted->attempts[t];
        assert_int_equal(a->verdict, b->verdict);
        assert_memory_equal(&a->scale, &b->scale,
                            offsetof(struct attempt, micro_batches) - offsetof(struct attempt, scale));
        for (uint32_t rank = 0; rank < ranks; rank++) {
            assert_int_equal(a->ranks[rank].evaluated, b->ranks[rank].evaluated);
            assert_memory_equal(&a->ranks[rank].evaluation_loss, &b->ranks[rank].evaluation_loss, sizeof(double));
            assert_string_equal(a->ranks[rank].tensor, b->ranks[rank].tensor);
            assert_int_equal(a->ranks[rank].control, 0);
        }
    }
    for (uint32_t rank = 0; rank < ranks; rank++)
        assert_int_equal(found->ends[rank].digest == wanted->ends[rank].digest, true);
}

/* An odd number of micro-batches, the last one short, so that the ranks' shares differ. */
static struct scenario job_of(void (*adjust)(struct play *), Gacc__V1__Compute type, uint32_t ranks)
{
    return (struct scenario){.csv = "",
                             .adjust = adjust,
                             .compute = type,
                             .ranks = ranks,
                             .global = 15,
                             .micro = 2,
                             .adamw = true,
                             .lr = 0.01,
                             .weight_decay = 0.1,
                             .clip = 1,
                             .scale = type == FP16 ? 1024 : 1,
                             .epochs = 100,
                             .stop_after = 4,
                             .unseen = true};
}

static void on_device_and_cpu(const struct scenario *scenario, struct fake_device *device)
{
    struct scenario on_cpu = *scenario, on_device = *scenario;
    on_device.device = &device->device;
    struct play *wanted = play_well(&on_cpu), *found = play_well(&on_device);
    compare(found, wanted, scenario->ranks);
    free(wanted);
    free(found);
}

static void every_model_in_every_type_gives_the_bits_of_the_cpu(void **state)
{
    (void)state;
    static const Gacc__V1__Compute types[] = {FP32, BF16, FP16};
    for (size_t j = 0; j < JOBS; j++)
        for (size_t t = 0; t < 3; t++)
            for (uint32_t ranks = 1; ranks <= 4; ranks *= 2) {
                struct fake_device device = fake_device();
                device.records = true;
                struct scenario scenario = job_of(jobs[j], types[t], ranks);
                on_device_and_cpu(&scenario, &device);
                assert_int_equal(device.replays > 0, jobs[j] != tape && ranks < 4); /* K = 8, 4 and 2 */
                assert_true(device.recordings <= ranks);
            }
}

static void so_does_a_transport_beside_the_kernels(void **state)
{
    (void)state;
    static const uint64_t limits[] = {7, 500, 100000};
    for (size_t j = 0; j < JOBS; j++)
        for (int early = 0; early < 2; early++)
            for (size_t i = 0; i < 3; i++)
                for (uint32_t ranks = 1; ranks <= 4; ranks++) {
                    if (limits[i] == 7 && jobs[j] != mlp) continue; /* a bucket for every few elements */
                    struct fake_device device = fake_device();
                    device.records = true;
                    device.device.open_comm = fake_open_comm;
                    device.early = early;
                    struct scenario scenario = job_of(jobs[j], j % 2 ? BF16 : FP32, ranks);
                    scenario.bucket_limit = limits[i];
                    on_device_and_cpu(&scenario, &device);
                }
}

static void a_device_that_cannot_record_after_all_runs_call_by_call(void **state)
{
    (void)state;
    struct fake_device device = fake_device();
    device.records = device.refuses_to_record = true;
    struct scenario scenario = job_of(small_gpt, FP32, 2);
    on_device_and_cpu(&scenario, &device);
    assert_int_equal(device.recordings, 2);
    assert_int_equal(device.replays, 0);
}

static void room_for_more(struct play *play)
{
    small_gpt(play);
    play->batch.micro = 3;
}

static void micro_batches_that_are_not_full_are_not_recorded(void **state)
{
    (void)state;
    struct fake_device device = fake_device();
    device.records = true;
    struct scenario scenario = job_of(room_for_more, FP32, 1);
    on_device_and_cpu(&scenario, &device);
    assert_int_equal(device.recordings, 0);
}

static void validated_gpt(struct play *play)
{
    small_gpt(play);
    play->validation_list[0] = play->train;
    play->data.validation = play->validation_list;
    play->data.n_validation = 1;
}

/* 111 losses of an evaluation move the memory that a recorded micro-batch adds its loss to. */
static void an_evaluation_longer_than_the_windows_outdates_what_was_recorded(void **state)
{
    (void)state;
    struct fake_device device = fake_device();
    device.records = true;
    struct scenario scenario = job_of(validated_gpt, FP32, 1);
    scenario.evaluate_every = 2;
    on_device_and_cpu(&scenario, &device);
    assert_int_equal(device.recordings, 2);
}

/* Masked rows, fewer micro-batches than ranks at the end of an epoch, evaluations, skips that are blamed. */
static void give_weight_0(struct play *play)
{
    static const char rows[] =
        "weight,x0,x1,y0\n1,2,3,4\n0,1,1e300,2\n1,3,1,0\n2,1,1,1\n0,9,9,9\n1,7,0,1\n0,-1e300,0,0\n0,1,1,1\n"
        "1,1,2,3\n1,2,1,2\n3,1,4,1\n";
    free(play->train);
    play->train_list[0] = play->train = scratch_file("train.csv", rows, sizeof rows - 1);
    play->validation_list[0] = play->validation = scratch_file("validation.csv", rows, sizeof rows - 1);
    play->data.validation = play->validation_list;
    play->data.n_validation = 1;
    play->model.type = GACC__V1__MODEL_TYPE__MODEL_LINEAR;
    play->model.inputs = 2;
    play->model.n_init_values = 0;
}

static void so_do_short_empty_and_skipped_windows(void **state)
{
    (void)state;
    for (int early = 0; early < 3; early++)
        for (uint32_t ranks = 1; ranks <= 4; ranks++) {
            struct fake_device device = fake_device();
            if (early < 2) device.device.open_comm = fake_open_comm;
            device.early = early;
            struct scenario scenario = job_of(give_weight_0, FP16, ranks);
            scenario.bucket_limit = 2;
            scenario.global = 8, scenario.micro = 1, scenario.stop_after = 6, scenario.evaluate_every = 1;
            scenario.faults.overflow_at.step = 3, scenario.faults.overflow_at.micro_batch = 3;
            on_device_and_cpu(&scenario, &device);
        }
}

/* --- one wait ------------------------------------------------------------------------------------------------- */

static void the_host_waits_once_in_a_step(void **state)
{
    (void)state;
    unsigned waits[2];
    for (int longer = 0; longer < 2; longer++) {
        struct fake_device device = fake_device();
        device.device.open_comm = fake_open_comm;
        struct scenario scenario = job_of(small_gpt, FP32, 1);
        scenario.bucket_limit = 1000;
        scenario.device = &device.device;
        scenario.stop_after = longer ? 9 : 4;
        free(play_well(&scenario));
        waits[longer] = device.waits;
    }
    assert_int_equal(waits[1] - waits[0], 5);
}

/* --- faults, memory, failures -------------------------------------------------------------------------------- */

static void the_self_check_sees_a_parameter_that_moves(void **state)
{
    (void)state;
    struct fake_device device = fake_device();
    struct scenario scenario = job_of(linear, FP32, 2);
    scenario.device = &device.device;
    scenario.global = 6; /* rank 1 has one micro-batch: after two of them the bit would be back */
    scenario.faults = (struct faults){.self_check = true, .parameter_write_at_step = 2, .rank = 1};
    struct play *play = play_run(&scenario);
    assert_int_equal(play->ends[0].result, -STATUS_INTERNAL);
    assert_string_equal(play->ends[0].error.text, "step 2: tensor weight changed inside the accumulation window");
    free(play);
}

static void a_rounded_accumulator_is_rounded_on_the_device_too(void **state)
{
    (void)state;
    struct fake_device device = fake_device();
    device.device.open_comm = fake_open_comm;
    device.early = true;
    struct scenario scenario = job_of(small_gpt, BF16, 2);
    scenario.bucket_limit = 500;
    scenario.faults.plant = PLANT_ACCUMULATOR_ROUNDED;
    on_device_and_cpu(&scenario, &device);
}

static void the_model_is_exported_from_the_device(void **state)
{
    (void)state;
    char files[2][65536];
    size_t bytes[2];
    for (int on_device = 0; on_device < 2; on_device++) {
        struct fake_device device = fake_device();
        struct scenario scenario = job_of(small_gpt, FP32, 3);
        if (on_device) scenario.device = &device.device;
        scenario.export = "model.safetensors";
        struct play *play = play_well(&scenario);
        FILE *file = fopen(play->export, "rb");
        assert_non_null(file);
        bytes[on_device] = fread(files[on_device], 1, sizeof files[0], file);
        fclose(file);
        free(play);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_true(bytes[0] > 20000 && bytes[0] < sizeof files[0]);
    assert_memory_equal(files[0], files[1], bytes[0]);
}

static void check_that_no_more_fits(struct scenario *scenario, uint32_t micro)
{
    scenario->micro = micro;
    free(play_well(scenario));
    scenario->micro = micro + 1;
    struct play *play = play_run(scenario);
    assert_int_equal(play->ends[0].result, -STATUS_INTERNAL);
    free(play);
}

static void what_does_not_fit_is_named_and_so_is_the_b_that_would(void **state)
{
    (void)state;
    struct fake_device device = fake_device();
    struct scenario scenario = job_of(small_gpt, FP32, 1);
    scenario.device = &device.device;
    scenario.global = scenario.micro = 200;
    device.memory = 3 << 20;
    struct play *play = play_run(&scenario);
    assert_int_equal(play->ends[0].result, -STATUS_INTERNAL);
    const char *text = play->ends[0].error.text, *advice = strstr(text, "; batch.micro: ");
    assert_int_equal(strncmp(text, "out of memory for the activations of a micro-batch: ", 52), 0);
    assert_non_null(advice);
    unsigned fits = 0, given = 0;
    assert_int_equal(sscanf(advice, "; batch.micro: %u fits, %u does not", &fits, &given), 2);
    assert_int_equal(given, 200);
    check_that_no_more_fits(&scenario, fits);
    unsigned recomputed = 0;
    advice = strstr(text, "; with recompute: block ");
    assert_non_null(advice);
    assert_int_equal(sscanf(advice, "; with recompute: block %u fits", &recomputed), 1);
    assert_true(fits < recomputed && recomputed < given);
    free(play);
    scenario.adjust = recomputing_gpt;
    check_that_no_more_fits(&scenario, recomputed);

    scenario.micro = 200; /* who recomputes is not told to */
    play = play_run(&scenario);
    assert_null(strstr(play->ends[0].error.text, "recompute"));
    free(play);
    scenario.adjust = small_gpt;

    device.memory = 1 << 16; /* 8,784 parameters of 4 bytes fit once */
    scenario.micro = 1;
    play = play_run(&scenario);
    assert_string_equal(play->ends[0].error.text,
                        "out of memory for the gradients: 34.3 KiB, and of 64.0 KiB 29.2 KiB are left");
    free(play);
}

static void a_device_that_fails_ends_the_job_on_all_ranks_in_order(void **state)
{
    (void)state;
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        struct fake_device device = fake_device();
        struct scenario scenario = job_of(small_gpt, FP32, ranks);
        scenario.device = &device.device;
        device.fails_at_wait = 3;
        struct play *play = play_run(&scenario);
        for (uint32_t rank = 0; rank < ranks; rank++) {
            assert_int_equal(play->ends[rank].result, -STATUS_INTERNAL);
            assert_string_equal(play->ends[rank].error.text, "the device failed");
        }
        free(play);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_model_in_every_type_gives_the_bits_of_the_cpu),
        cmocka_unit_test(so_does_a_transport_beside_the_kernels),
        cmocka_unit_test(a_device_that_cannot_record_after_all_runs_call_by_call),
        cmocka_unit_test(micro_batches_that_are_not_full_are_not_recorded),
        cmocka_unit_test(an_evaluation_longer_than_the_windows_outdates_what_was_recorded),
        cmocka_unit_test(so_do_short_empty_and_skipped_windows),
        cmocka_unit_test(the_host_waits_once_in_a_step),
        cmocka_unit_test(the_self_check_sees_a_parameter_that_moves),
        cmocka_unit_test(a_rounded_accumulator_is_rounded_on_the_device_too),
        cmocka_unit_test(the_model_is_exported_from_the_device),
        cmocka_unit_test(what_does_not_fit_is_named_and_so_is_the_b_that_would),
        cmocka_unit_test(a_device_that_fails_ends_the_job_on_all_ranks_in_order),
    };
    return cmocka_run_group_tests_name("device", tests, scratch_open, scratch_close);
}
