/* Trials on the launcher's ranks (CTest: mpirun -n 3): the same as on threads, on every rank. */
#include "tests/unit/trial_jobs.h"

#include <mpi.h>

static struct comm *launcher;

static int open_comm(void **state)
{
    struct error error;
    if (scratch_open(state)) return -1;
    if (!comm_open_mpi(&launcher, &error)) return 0;
    print_error("%s\n", error.text);
    return -1;
}

static int close_comm(void **state)
{
    comm_close(launcher);
    return scratch_close(state);
}

/* Sums 3, 7 | 11, 14 in micro-batches of two; mean 35/7 = 5 */
static const struct scenario of_seven = {.csv = "g0,g1\n1,7\n2,7\n3,7\n4,7\n5,7\n6,7\n14,7\n",
                                         .size = 2,
                                         .global = 7,
                                         .micro = 2,
                                         .compute = FP16,
                                         .scale = 8};

static void launched_ranks_have_what_threads_have(void **state)
{
    (void)state;
    struct trial_spec spec = {
        .ranks = launcher->ranks, .steps = 3, .faults.overflow_at = {.step = 2, .micro_batch = 1}};
    struct trial threads = try_job(&of_seven, spec);
    spec.launcher = launcher;
    launcher->counts = (struct comm_counts){.control = 77};
    struct trial ranks = try_job(&of_seven, spec);
    assert_int_equal(launcher->counts.control, 77);
    assert_int_equal(launcher->counts.reduce_scatter, 0);
    assert_near(ranks.gradient[0], 5, 0.01);
    assert_near(ranks.gradient[1], 7, 0.01);
    assert_int_equal(ranks.steps[1].verdict, VERDICT_IS_SKIP);
    assert_int_equal(ranks.steps[1].bytes_changed, 0);
    assert_int_equal(ranks.steps[0].reduce_scatters, 1);
    assert_int_equal(ranks.steps[0].control_collectives, 0);
    assert_int_equal(ranks.step_count, threads.step_count);
    for (uint64_t i = 0; i < 2; i++) {
        assert_near(ranks.gradient[i], threads.gradient[i], 1e-6);
        assert_near(ranks.before[i], threads.before[i], 0);
        assert_near(ranks.after[i], threads.after[i], 1e-6);
    }
    for (uint64_t i = 0; i < ranks.step_count; i++) {
        assert_int_equal(ranks.steps[i].verdict, threads.steps[i].verdict);
        assert_int_equal(ranks.steps[i].reduce_scatter_bytes, threads.steps[i].reduce_scatter_bytes);
        assert_int_equal(ranks.steps[i].all_gather_bytes, threads.steps[i].all_gather_bytes);
        assert_int_equal(ranks.steps[i].gradients_cleared, threads.steps[i].gradients_cleared);
        assert_near(ranks.steps[i].loss_scale_next, threads.steps[i].loss_scale_next, 0);
    }
    assert_memory_equal(&ranks.memory, &threads.memory, sizeof ranks.memory);
    trial_free(&threads);
    trial_free(&ranks);
}

static void faults_are_the_same_there(void **state)
{
    (void)state;
    static const enum plant plants[] = {PLANT_RANK_MEANS, PLANT_SKIPS_ALONE, PLANT_REDUCED_PER_MICRO_BATCH};
    for (size_t i = 0; i < sizeof plants / sizeof *plants; i++) {
        struct trial_spec spec = {.ranks = launcher->ranks, .steps = 2, .faults.plant = plants[i]};
        struct trial threads = try_job(&of_seven, spec);
        spec.launcher = launcher;
        struct trial ranks = try_job(&of_seven, spec);
        assert_near(ranks.gradient[0], threads.gradient[0], 1e-6);
        assert_near(ranks.after[0], threads.after[0], 1e-6);
        assert_int_equal(ranks.steps[1].reduce_scatters, threads.steps[1].reduce_scatters);
        trial_free(&threads);
        trial_free(&ranks);
    }
}

static void an_error_of_one_rank_is_everyones(void **state)
{
    (void)state;
    struct trial_job *job = trial_job(&of_seven);
    struct trial_spec spec = {.job = &job->play.job, .launcher = launcher, .steps = 2};
    struct trial trial;
    struct error error;
    spec.faults = (struct faults){.data_error_at_step = 2, .rank = 1};
    assert_int_equal(trial_run(&trial, &spec, &error), -(int)STATUS_DATA);
    assert_non_null(strstr(error.text, "rank 1: "));
    spec.faults = (struct faults){.memory_lost_at_step = 2, .rank = 1};
    assert_int_equal(trial_run(&trial, &spec, &error), -(int)STATUS_INTERNAL);
    assert_string_equal(error.text, "rank 1: out of memory, as planted");
    spec.faults = (struct faults){.reduction_missed_at_step = 1, .rank = 2};
    assert_int_equal(trial_run(&trial, &spec, &error), -(int)STATUS_INTERNAL);
    assert_non_null(strstr(error.text, "rank 2 calls a broadcast where rank 0 calls a reduction"));
    spec.faults = (struct faults){0};
    if (launcher->rank == 2) unlink(job->play.train); /* each rank has a file of its own here */
    assert_int_equal(trial_run(&trial, &spec, &error), -(int)STATUS_MISSING);
    assert_non_null(strstr(error.text, "rank 2: "));
    trial_job_free(job);
}

int main(int count, char **arguments)
{
    int given;
    if (MPI_Init_thread(&count, &arguments, MPI_THREAD_FUNNELED, &given) != MPI_SUCCESS) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launched_ranks_have_what_threads_have),
        cmocka_unit_test(faults_are_the_same_there),
        cmocka_unit_test(an_error_of_one_rank_is_everyones),
    };
    int failed = cmocka_run_group_tests(tests, open_comm, close_comm);
    MPI_Finalize();
    return failed;
}
