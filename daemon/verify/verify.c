#include "daemon/verify/verify.h"

#include "daemon/verify/checks.h"
#include "daemon/verify/controls.h"

int verify_job(const Gacc__V1__JobSpec *job, struct comm *launcher, const struct device *device, uint64_t sequences,
               const struct verify_listener *listener, struct verification *verification, struct error *error)
{
    struct suite suite;
    *verification = (struct verification){.pass = true};
    int result = suite_open(&suite, job, launcher, device, sequences, error);
    if (result) return result;
    listener->began(listener->context, &suite);
    for (enum check_index i = 0; i < CHECKS; i++) {
        struct check *check = &verification->checks[verification->check_count++];
        check_run(i, &suite, check);
        verification->pass &= check->pass || check->skipped;
        listener->checked(listener->context, check);
    }
    for (size_t i = 0; i < controls_count; i++) {
        struct planted *planted = &verification->controls[verification->control_count++];
        control_run(i, &suite, planted);
        verification->pass &= planted->pass || planted->skipped;
        listener->controlled(listener->context, planted);
    }
    suite_close(&suite);
    return 0;
}
