/*
 * The mind of the coordinator: messages and times in, messages and records out. It owns everything that must be the
 * same on all ranks (plan, W, loss scale, verdict, clip coefficient, learning rate, when to evaluate and to stop) and
 * has no socket, clock, file or thread. `now` is in seconds on any clock that does not go back.
 *
 * The order of a job, as the caller sees it:
 *     hello ×N → welcome
 *     report(0) ×N → decide
 *     report(t) ×N → decide, step_done(t) ×N → records    for every step t
 *     report(t) ×N → decide                               again, when that is due, where the job is paused behind t
 *     report(t) ×N → decide                               again, where the decision was RETRY
 *     finished ×N → farewell ×N
 *
 * A decision may ask for a checkpoint. What belongs into it beside the ranks' parts is conductor_progress; whether it
 * became one is told with conductor_saved before the next decision that may ask for another
 * (conductor_awaits_checkpoint), and before the farewell.
 *
 * Functions that take a message return
 *     0   taken; others are still awaited
 *     1   taken, and it was the last one awaited: what stands right of the arrow is due
 *     <0  the negated status, with the text in *error: the job has failed and cannot go on in order
 *
 * A negative answer of conductor_hello means that the job cannot start: every rank that has said hello, and each one
 * that says it later (with a negative answer, too), gets conductor_farewell. A negative answer of the others means that
 * a worker broke the protocol (a message repeated, out of order or impossible) or was interrupted by a signal: every
 * rank gets conductor_farewell unsolicited, and whatever else comes in is ignored (0).
 *
 * A local error that a worker reports in order is no negative answer: it comes out as a decision FAIL, or in the
 * farewell. So does the end by numerics: the decision's text names the step, and the last culprit known by then; blame
 * that comes in with the step_done of the FAIL itself completes the text of farewell, record and conductor_end.
 */
#ifndef GACC_CONDUCTOR_H
#define GACC_CONDUCTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/coordinator/progress.h"
#include "daemon/core/requests.h"
#include "daemon/core/retention.h"
#include "daemon/job/live.h"
#include "daemon/observe/step_log.h"
#include "proto/error.h"
#include "proto/gacc/v1/control.pb-c.h"
#include "proto/gacc/v1/job.pb-c.h"
#include "proto/gacc/v1/workers.pb-c.h"

struct conductor;

/* The job is borrowed until conductor_close. */
int conductor_open(struct conductor **out, const Gacc__V1__JobSpec *job, uint32_t ranks, double now,
                   struct error *error);
void conductor_close(struct conductor *conductor);
/* Before the first hello: all that was set while the job ran, which it has in it already. Copied. 70: out of memory. */
int conductor_restore_settings(struct conductor *conductor, const struct job_settings *settings, struct error *error);
/* Before the first hello: the job goes on from there. `restore`, for the ranks, is borrowed until conductor_close. */
void conductor_resume(struct conductor *conductor, const struct progress *progress, Gacc__V1__Restore *restore);

/* Messages in; they are borrowed for the call. */
int conductor_hello(struct conductor *conductor, uint32_t rank, const Gacc__V1__Hello *hello, double now,
                    struct error *error);
int conductor_report(struct conductor *conductor, uint32_t rank, const Gacc__V1__Report *report, double now,
                     struct error *error);
/* Returns 1 when the step's records are ready. After a decision FAIL it may come or not. */
int conductor_step_done(struct conductor *conductor, uint32_t rank, const Gacc__V1__StepDone *done, double now,
                        struct error *error);
/* Returns 1 when all ranks have finished: each is then answered with its farewell. */
int conductor_finished(struct conductor *conductor, uint32_t rank, const Gacc__V1__Finished *finished, double now,
                       struct error *error);
/* `who` ("rank 1", "the coordinator") was signalled. SIGUSR1 asks for a checkpoint behind the step under way, all
 * others for one and then the end, with 75. Negative: the job ends at once, because it was asked so a second time
 * (times: by this one), because its launcher is gone or because there is no step yet. */
int conductor_interrupted(struct conductor *conductor, const char *who, const Gacc__V1__Interrupted *interrupted,
                          struct error *error);
/* An operator asks. `who` names him: "uid 1000 (jo), pid 1234". With ANSWER_NOW the boundary is the last one
 * (conductor_boundary), or, of a checkpoint, that of the last decision that asked for one (conductor_progress); with
 * ANSWER_AT_BOUNDARY that of the next decision; with ANSWER_END the job ends at once; with ANSWER_REFUSED *error says
 * why. */
enum answer conductor_ask(struct conductor *conductor, enum request request, const char *who, struct error *error);
/* The job with other values (live.h), bound on top of conductor_next_job; `scale`: S is set to; 0: as it is.
 * `settings`: all that were ever set, these included. Takes job and settings where the answer is not ANSWER_REFUSED. In
 * a paused job they are in effect at once: ANSWER_NOW. Otherwise of the window behind the next boundary; batch.global
 * of the one after that. Refused: 69, the job cannot now; 78: its data do not allow it. */
enum answer conductor_set(struct conductor *conductor, Gacc__V1__JobSpec *job, struct job_settings *settings,
                          const struct job_changes *changes, float scale, struct error *error);
/* As it is now; as it will be behind the next boundary; all that was ever set, as it will be there; the scale of the
 * next window as known now, 0 without one. */
const Gacc__V1__JobSpec *conductor_job(const struct conductor *conductor);
const Gacc__V1__JobSpec *conductor_next_job(const struct conductor *conductor);
const struct job_settings *conductor_settings(const struct conductor *conductor);
const struct job_settings *conductor_next_settings(const struct conductor *conductor);
float conductor_next_scale(const struct conductor *conductor);
/* Which checkpoints may go. */
const struct retention *conductor_retention(const struct conductor *conductor);
/* For GetStatus only; never refused, nothing depends on it. */
void conductor_state(struct conductor *conductor, uint32_t rank, const Gacc__V1__StateChange *change, double now);

/* To be called again and again: whether a rank is still in a collective that all have come to and another has left,
 * with nothing new from any of them for `limit` seconds in which the caller was awake (it was not before
 * `awake_since`). That ends the job: every rank gets conductor_farewell unsolicited. */
bool conductor_stands_still(struct conductor *conductor, double now, double awake_since, double limit);

/* A rank's process or stream is gone. Returns true when that ends the job: every other rank gets conductor_farewell
 * unsolicited. False when the rank had finished and everything is in order. */
bool conductor_lost(struct conductor *conductor, uint32_t rank, const char *why);
/* Something failed at the coordinator itself (the log cannot be written): the job ends in order with the next decision
 * or farewell. */
void conductor_fail(struct conductor *conductor, const struct error *error);
/* As conductor_fail, by rank 0, which prints the text itself: no other rank is asked to. */
void conductor_fail_said(struct conductor *conductor, const struct error *error);

/* Messages out, when the call above returned 1; they belong to the conductor and stay as they are until its next call
 * that takes a message or gives one. */
const Gacc__V1__Welcome *conductor_welcome(struct conductor *conductor, double now);
const Gacc__V1__Decision *conductor_decide(struct conductor *conductor, double now);
/* Counters as the last decision left them. */
const struct step_counters *conductor_boundary(const struct conductor *conductor);
/* Whether a decision is due: all reports are in, and the job is not paused or something is to be done there. To be
 * looked at after a report, and after everything that was asked for. */
bool conductor_is_due(const struct conductor *conductor);
bool conductor_is_paused(const struct conductor *conductor);
/* A pause was asked for, and is still to come. */
bool conductor_will_pause(const struct conductor *conductor);
/* The last decision asked for a checkpoint. Without a `save` in it, the ranks' parts are those of the complete one of
 * the same name, and its manifest is made anew. */
bool conductor_opens_checkpoint(const struct conductor *conductor);
/* Whether the decision that is due must wait for a checkpoint that is under way. */
bool conductor_awaits_checkpoint(const struct conductor *conductor);
/* The records of the last decision's step are still to come, with its step_done. */
bool conductor_awaits_records(const struct conductor *conductor);
/* As of the last decision that asked for a checkpoint, which is called `name`; with what its step's records tell, as
 * soon as there are any. */
const struct progress *conductor_progress(const struct conductor *conductor, const char **name);
/* The checkpoint is complete (why NULL), or will never be: failures in a row end the job. */
void conductor_saved(struct conductor *conductor, const struct error *why);
/* The last decision asked for a checkpoint and told the ranks to stop. */
bool conductor_is_stopping(const struct conductor *conductor);
/* The last decision is out, and some rank is not done: final/ may be being written. */
bool conductor_is_finishing(const struct conductor *conductor);
/* Nothing more will happen: a job that has stopped, with its checkpoint, ends with 75. */
void conductor_settle(struct conductor *conductor);
/* The first call settles which rank prints a failure. */
const Gacc__V1__Farewell *conductor_farewell(struct conductor *conductor, uint32_t rank);

enum record_type { RECORD_STEP, RECORD_EVAL, RECORD_EVENT };
struct record {
    enum record_type type;
    union {
        struct step_record step;
        struct eval_record eval;
        struct event_record event;
    };
};
/* The next record for the log, in order; false when there is none now. Call until false whenever step_done or finished
 * returned 1, a message was answered negatively, or a rank was lost. Pointers in it are valid until the conductor's
 * next call that takes a message. */
bool conductor_next_record(struct conductor *conductor, struct record *record);

/* Once the welcome is out: how many steps (by epochs: attempts) a job that goes on has done beyond those that it now
 * has. */
uint64_t conductor_steps_beyond(const struct conductor *conductor);
/* Complete once the welcome is out. Pointers in it are valid until conductor_close. */
void conductor_header(const struct conductor *conductor, struct header_record *header);
/* The job's exit status and reason as known now, and the counters. */
void conductor_end(const struct conductor *conductor, double now, struct end_record *end);
/* The phase of a Status alone. */
const char *conductor_phase(const struct conductor *conductor);
/* Everything but `pid`, `started_unix_seconds` and the newest checkpoint, which are the caller's to fill in. Valid
 * until the next call. */
Gacc__V1__Status *conductor_status(struct conductor *conductor, double now);

#endif
