/* Words for those who slipped: nearest keys and choices, and the conditions under which a key belongs. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/job/keys.h"
#include "daemon/slip.h"

__attribute__((format(printf, 2, 3))) static void add(struct phrase *phrase, const char *format, ...)
{
    size_t length = strlen(phrase->text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(phrase->text + length, sizeof phrase->text - length, format, arguments);
    va_end(arguments);
}

static const char *leaf_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* Whether the path is a key right below the section. */
static bool is_below(const char *path, const char *section)
{
    size_t length = strlen(section);
    if (length == 0) return !strchr(path, '.');
    return strncmp(path, section, length) == 0 && path[length] == '.' && leaf_of(path) == path + length + 1;
}

/* What other trainers, and the libraries around them, call it. */
static const struct {
    const char *word, *path;
} synonyms[] = {
    {"learning_rate", "optimizer.lr"},
    {"max_lr", "optimizer.lr"},
    {"wd", "optimizer.weight_decay"},
    {"beta1", "optimizer.betas"},
    {"beta2", "optimizer.betas"},
    {"adam_beta1", "optimizer.betas"},
    {"adam_beta2", "optimizer.betas"},
    {"epsilon", "optimizer.eps"},
    {"adam_epsilon", "optimizer.eps"},
    {"grad_clip", "optimizer.clip_norm"},
    {"clip_grad_norm", "optimizer.clip_norm"},
    {"gradient_clipping", "optimizer.clip_norm"},
    {"max_grad_norm", "optimizer.clip_norm"},
    {"max_norm", "optimizer.clip_norm"},
    {"param_groups", "optimizer.groups"},
    {"lr_scheduler_type", "schedule.type"},
    {"warmup_iters", "schedule.warmup"},
    {"warmup_steps", "schedule.warmup"},
    {"num_warmup_steps", "schedule.warmup"},
    {"lr_decay_iters", "schedule.total"},
    {"num_training_steps", "schedule.total"},
    {"min_lr", "schedule.minimum"},
    {"batch_size", "batch.global"},
    {"global_batch_size", "batch.global"},
    {"train_batch_size", "batch.global"},
    {"micro_batch_size", "batch.micro"},
    {"train_micro_batch_size_per_gpu", "batch.micro"},
    {"per_device_train_batch_size", "batch.micro"},
    {"max_iters", "job.steps"},
    {"max_steps", "job.steps"},
    {"train_iters", "job.steps"},
    {"num_epochs", "job.epochs"},
    {"num_train_epochs", "job.epochs"},
    {"output_dir", "job.output"},
    {"out_dir", "job.output"},
    {"eval_interval", "evaluation.every"},
    {"eval_steps", "evaluation.every"},
    {"eval_iters", "evaluation.sequences"},
    {"save_interval", "checkpoint.every"},
    {"save_steps", "checkpoint.every"},
    {"save_total_limit", "checkpoint.keep"},
    {"mixed_precision", "precision.compute"},
    {"amp", "precision.compute"},
    {"bf16", "precision.compute"},
    {"fp16", "precision.compute"},
    {"dtype", "precision.compute"},
    {"init_scale", "precision.loss_scale.initial"},
    {"initial_scale_power", "precision.loss_scale.initial"},
    {"growth_factor", "precision.loss_scale.growth"},
    {"backoff_factor", "precision.loss_scale.backoff"},
    {"growth_interval", "precision.loss_scale.interval"},
    {"loss_scale_window", "precision.loss_scale.interval"},
    {"min_loss_scale", "precision.loss_scale.minimum"},
    {"gradient_checkpointing", "recompute"},
    {"activation_checkpointing", "recompute"},
    {"block_size", "model.context"},
    {"n_positions", "model.context"},
    {"seq_length", "model.context"},
    {"n_layer", "model.layers"},
    {"num_layers", "model.layers"},
    {"num_hidden_layers", "model.layers"},
    {"n_head", "model.heads"},
    {"num_heads", "model.heads"},
    {"num_attention_heads", "model.heads"},
    {"n_embd", "model.width"},
    {"d_model", "model.width"},
    {"hidden_size", "model.width"},
    {"vocab_size", "model.vocab"},
    {"r", "model.lora.rank"},
    {"lora_alpha", "model.lora.alpha"},
    {"lora_dropout", "model.lora.dropout"},
    {"target_modules", "model.lora.targets"},
};

bool key_is_derived(const char *path)
{
    static const char *const names[] = {"K", "M", "accumulate", "micro_batches", "gradient_accumulation_steps"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(leaf_of(path), names[i]) == 0) return true;
    return false;
}

static bool is_first_of_its_path(const struct key *key)
{
    for (const struct key *before = keys; before < key; before++)
        if (strcmp(before->path, key->path) == 0) return false;
    return true;
}

/* As the section has it, or by its whole path where it is another section's. */
static const char *name_in(const char *section, const char *path)
{
    for (size_t i = 0; i < key_count; i++)
        if (is_below(keys[i].path, section) && strcmp(leaf_of(keys[i].path), leaf_of(path)) == 0) return leaf_of(path);
    return path;
}

/* Of this section a word that is near; else the very word, as another section or another trainer has it. NULL: nothing.
 */
static const char *meant_by(const char *section, const char *leaf)
{
    struct nearest nearest = {.wrong = leaf};
    const char *elsewhere = NULL;
    for (size_t i = 0; i < key_count; i++) {
        const char *name = leaf_of(keys[i].path);
        if (is_below(keys[i].path, section))
            nearest_try(&nearest, name);
        else if (!elsewhere && strcmp(leaf, name) == 0)
            elsewhere = keys[i].path;
    }
    for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms && !elsewhere; i++)
        if (strcmp(leaf, synonyms[i].word) == 0) elsewhere = name_in(section, synonyms[i].path);
    return nearest.word ? nearest.word : elsewhere;
}

struct phrase key_suggestion(const char *section, const char *leaf)
{
    struct phrase phrase = {""};
    const char *meant = meant_by(section, leaf);
    if (meant) {
        add(&phrase, "; did you mean %s?", meant);
        return phrase;
    }
    const char *separator = "; there are ";
    for (size_t i = 0; i < key_count; i++) {
        if (!is_below(keys[i].path, section) || !is_first_of_its_path(&keys[i])) continue;
        add(&phrase, "%s%s", separator, leaf_of(keys[i].path));
        separator = ", ";
    }
    return phrase;
}

/* Another row of the same path that has this choice, or NULL. */
static const struct key *row_with_choice(const struct key *key, const char *name)
{
    for (const struct key *row = keys; row < keys + key_count; row++)
        for (const struct choice *choice = row->choices; choice && choice->name; choice++)
            if (row != key && strcmp(row->path, key->path) == 0 && strcmp(choice->name, name) == 0) return row;
    return NULL;
}

struct phrase choice_suggestion(const struct key *key, const char *wrong)
{
    struct phrase phrase = {""};
    struct nearest nearest = {.wrong = wrong};
    const struct key *other = row_with_choice(key, wrong);
    if (other)
        add(&phrase, "is for %s %s; here it is one of ", key_of_selector(other->when->by)->path,
            condition_values(other->when).text);
    else
        add(&phrase, "is not one of ");
    for (const struct choice *choice = key->choices; choice->name; choice++) {
        add(&phrase, "%s%s", choice == key->choices ? "" : ", ", choice->name);
        nearest_try(&nearest, choice->name);
    }
    if (nearest.word && !other) add(&phrase, "; did you mean %s?", nearest.word);
    return phrase;
}

struct phrase condition_values(const struct condition *condition)
{
    struct phrase phrase = {""};
    const char *separator = "";
    for (const struct choice *choice = key_of_selector(condition->by)->choices; choice->name; choice++) {
        if (!(condition->values & 1U << choice->value)) continue;
        add(&phrase, "%s%s", separator, choice->name);
        separator = ", ";
    }
    return phrase;
}
