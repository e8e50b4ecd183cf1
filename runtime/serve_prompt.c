/* Prompts of requests (see serve_prompt.h). */
#include "runtime/serve_prompt.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "runtime/chat_json.h"

static const char invalid[] = "invalid_request_error";

void sl_serve_prompt_free(struct sl_serve_prompt *p)
{
    if (!p) return;
    free(p->marks);
    free(p);
}

/* Cancelling another request interrupts the engine through a flag that encoders hear too. */
static bool again(int code)
{
    static const struct timespec moment = {0, 1000000};
    if (code != SL_E_INTR) return false;
    nanosleep(&moment, NULL);
    return true;
}
enum { TRIES = 2000 };

static int from_error(struct sl_serve_fault *f, int code, const char *param, const char *text)
{
    if (code == SL_E_ARG)
        return sl_serve_refuse(f, 400, invalid, "invalid_value", param, "%s", text);
    if (code == SL_E_INTR)
        return sl_serve_refuse(f, 503, "server_error", "shutting_down", NULL,
                               "the server is shutting down");
    return sl_serve_refuse(f, 500, "server_error", "internal", NULL, "%s", text);
}

static int text_prompt(struct sl_serve_job *job, const struct sl_serve_model *m,
                       struct sl_serve_fault *f)
{
    const char *text = job->req.prompt;
    sluice_error e = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    int rc = sluice_encode(m->p, text, strlen(text), 0, &ids, &n, &e);
    for (int i = 0; rc && i < TRIES && again(e.code); i++)
        rc = sluice_encode(m->p, text, strlen(text), 0, &ids, &n, &e);
    if (rc) return from_error(f, e.code, "prompt", e.text);
    job->prompt = (struct sl_ids){ids, n, n};
    return 0;
}

static int id_prompt(struct sl_serve_job *job, const struct sl_serve_model *m,
                     struct sl_serve_fault *f)
{
    const cJSON *id;
    struct sl_err err = {0};
    size_t i = 0;
    cJSON_ArrayForEach(id, job->req.prompt_ids)
    {
        if (id->valuedouble >= sluice_vocab_size(m->p))
            return sl_serve_refuse(f, 400, invalid, "invalid_value", "prompt",
                                   "prompt[%zu]: %.0f is outside the vocabulary of %d", i,
                                   id->valuedouble, sluice_vocab_size(m->p));
        int rc = sl_ids_push(&job->prompt, (int32_t)id->valuedouble, &err);
        if (rc) return from_error(f, rc, NULL, err.text);
        i++;
    }
    return 0;
}

static int chat_prompt(struct sl_serve_job *job, const struct sl_serve_model *m, const char *body,
                       size_t len, struct sl_serve_fault *f)
{
    if (!m->format)
        return sl_serve_refuse(f, 400, invalid, "unsupported_value", "model",
                               "this model's vocabulary has no chat markup; use /v1/completions");
    struct sl_chat c = {0};
    struct sl_chat_prompt out = {0};
    struct sl_err err = {0};
    char param[SL_CHAT_PARAM_MAX] = "";
    int rc = sl_chat_from_json(&c, body, len, param, &err);
    if (!rc) rc = sl_chat_turns_render(m->turns, m->format, &c, &out, &err);
    for (int i = 0; rc && i < TRIES && again(rc); i++)
        rc = sl_chat_turns_render(m->turns, m->format, &c, &out, &err);
    if (rc) {
        rc = from_error(f, rc, param, err.text);
        goto end;
    }
    job->chat = calloc(1, sizeof *job->chat);
    if (!job->chat) {
        rc = from_error(f, SL_E_NOMEM, NULL, "no memory for the prompt");
        goto end;
    }
    job->thinking = !c.no_thinking;
    job->prompt = out.ids;
    job->chat->marks = out.marks;
    job->chat->n_marks = out.n_marks;
    out = (struct sl_chat_prompt){0};
end:
    sl_chat_prompt_free(&out);
    sl_chat_free(&c);
    return rc;
}

int sl_serve_prompt_build(struct sl_serve_job *job, const struct sl_serve_model *m,
                          const char *body, size_t len, struct sl_serve_fault *f)
{
    int rc = job->req.kind == SL_SERVE_CHAT ? chat_prompt(job, m, body, len, f)
             : job->req.prompt              ? text_prompt(job, m, f)
                                            : id_prompt(job, m, f);
    if (rc) return rc;
    const char *param = job->req.kind == SL_SERVE_CHAT ? "messages" : "prompt";
    if (!job->prompt.n)
        return sl_serve_refuse(f, 400, invalid, "invalid_value", param, "the prompt is empty");
    if (job->prompt.n > m->ctx)
        return sl_serve_refuse(f, 400, invalid, "context_length_exceeded", param,
                               "the prompt has %zu tokens, the context %llu (--ctx)", job->prompt.n,
                               (unsigned long long)m->ctx);
    return 0;
}
