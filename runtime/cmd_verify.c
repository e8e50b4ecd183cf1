/* sluice verify: is this pack whole?
 *
 * Fast: structure, sizes, every offset, the tensors the model needs, the tokenizer, and the sums of all
 * files that are text; reads a few megabytes of any pack. --full reads every byte and checks every crc. Faults are the answer and go to
 * stdout, one line each; the exit status is 4 when there is one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/pool.h"
#include "base/size.h"
#include "offload/pack.h"
#include "runtime/args.h"
#include "runtime/commands.h"
#include "runtime/pack_audit.h"
#include "runtime/report.h"

struct answer {
    bool json;
    uint64_t faults;
    bool complete; /* all lines are in the lists below (--json only) */
    cJSON *fault_list, *note_list;
};

static void add_line(struct answer *a, cJSON *list, const char *line)
{
    cJSON *s = cJSON_CreateString(line);
    if (s && cJSON_AddItemToArray(list, s)) return;
    cJSON_Delete(s);
    a->complete = false;
}

static void on_fault(void *ctx, const char *line)
{
    struct answer *a = ctx;
    a->faults++;
    if (a->json)
        add_line(a, a->fault_list, line);
    else
        printf("%s\n", line);
}

static void on_note(void *ctx, const char *line)
{
    struct answer *a = ctx;
    if (a->json)
        add_line(a, a->note_list, line);
    else
        fprintf(stderr, "sluice: note: %s\n", line);
}

/* Everything short of reading weights. */
static int audit(const struct sl_pack *p, bool full, struct answer *a, struct sl_err *err)
{
    const struct sl_audit_sink sink = {on_fault, on_note, a};
    int rc = sl_audit_tensors(p, &sink, err);
    if (!rc) rc = sl_audit_tokenizer(p, &sink, err);
    if (!rc) rc = sl_audit_sums(p, &sink, err);
    if (!rc && full) rc = sl_audit_maps(p, &sink, err);
    if (!rc) sl_audit_files(p, &sink);
    return rc;
}

static uint64_t count_records(const struct sl_pack *p)
{
    uint64_t n = 0;
    for (int b = 0; b < p->n_banks; b++) n += p->banks[b].n_experts;
    return n;
}

static double rate(const struct sl_verify_report *r)
{
    return r->seconds > 0 ? (double)r->bytes_read / r->seconds : 0;
}

static void print_text(const struct sl_pack *p, bool full, const struct answer *a,
                       const struct sl_verify_report *r)
{
    char total[32];
    char took[32];
    char speed[32];
    uint64_t bytes = p->trunk_bytes + p->vision_bytes + sl_pack_bank_bytes(p);
    snprintf(took, sizeof took, "%.2f s", r->seconds);
    if (r->seconds >= 60) sl_format_seconds(took, sizeof took, r->seconds);
    printf("%s: %s: %d layers, %d tensors, %d banks, %llu expert records, %s\n", p->dir,
           a->faults ? "FAULTY" : "sound", p->cfg.n_layers, p->n_tensors + p->n_vision, p->n_banks,
           (unsigned long long)count_records(p), sl_format_bytes(total, sizeof total, bytes));
    if (full)
        printf("read and checked %s in %s, %s/s\n",
               sl_format_bytes(total, sizeof total, r->bytes_read), took,
               sl_format_bytes(speed, sizeof speed, (uint64_t)rate(r)));
    else
        printf("structure, sizes and text files only; --full reads every byte\n");
}

/* p NULL: the pack did not open, and the reason is among the faults. */
static int print_json(const char *path, const struct sl_pack *p, bool full, struct answer *a,
                      const struct sl_verify_report *r, int threads, struct sl_err *err)
{
    cJSON *o = sl_report_open(threads);
    sl_report_str(o, "pack", path);
    sl_report_bool(o, "full", full);
    sl_report_bool(o, "ok", !a->faults);
    sl_report_u64(o, "fault_count", a->faults);
    if (!o || !a->complete) {
        cJSON_Delete(o);
        return sl_fail(err, SL_E_NOMEM, NULL, "verify", "out of memory for the report");
    }
    bool lists = cJSON_AddItemToObject(o, "faults", a->fault_list);
    if (lists) a->fault_list = NULL;
    bool notes = cJSON_AddItemToObject(o, "notes", a->note_list);
    if (notes) a->note_list = NULL;
    if (!lists || !notes) {
        cJSON_Delete(o);
        return sl_fail(err, SL_E_NOMEM, NULL, "verify", "out of memory for the report");
    }
    if (p) {
        sl_report_u64(o, "layers", (uint64_t)p->cfg.n_layers);
        sl_report_u64(o, "tensors", (uint64_t)p->n_tensors + (uint64_t)p->n_vision);
        sl_report_u64(o, "banks", (uint64_t)p->n_banks);
        sl_report_u64(o, "expert_records", count_records(p));
        sl_report_u64(o, "trunk_bytes", p->trunk_bytes);
        sl_report_u64(o, "bank_bytes", sl_pack_bank_bytes(p));
        sl_report_u64(o, "vision_bytes", p->vision_bytes);
    }
    if (p && full) {
        sl_report_u64(o, "read_bytes", r->bytes_read);
        sl_report_f64(o, "seconds", r->seconds);
        sl_report_f64(o, "bytes_per_s", rate(r));
    }
    return sl_report_print(o, err);
}

struct request {
    const char *path;
    bool full;
    int threads;
    const struct sl_arg_list *bank_dirs;
};

/* Faults end in a->faults; rc is for what kept us from finding out. */
static int verify(const struct request *q, struct answer *a, struct sl_err *err)
{
    struct sl_pack *p = NULL;
    struct sl_pool *pool = NULL;
    struct sl_verify_report report = {0};
    int rc = sl_pack_open(&p, q->path, q->bank_dirs->v, q->bank_dirs->n, err);
    if (rc == SL_E_PACK) {
        /* For a person this is an error like any command's; a script still gets its object. */
        if (!a->json) return rc;
        on_fault(a, err->text);
        return print_json(q->path, NULL, q->full, a, &report, q->threads, err);
    }
    if (!rc) rc = audit(p, q->full, a, err);
    if (!rc && q->full) rc = sl_pool_open(&pool, q->threads, err);
    if (!rc && q->full) {
        rc = sl_pack_verify(p, pool, on_fault, a, &report, err);
        if (report.faults && (rc == SL_E_PACK || rc == SL_E_IO)) rc = 0; /* reported as faults */
    }
    if (!rc && a->json) rc = print_json(q->path, p, q->full, a, &report, q->threads, err);
    if (!rc && !a->json) print_text(p, q->full, a, &report);
    sl_pool_close(pool);
    sl_pack_close(p);
    return rc;
}

int sl_cmd_verify(int argc, char **argv)
{
    bool json = false;
    bool full = false;
    int64_t threads = 0;
    struct sl_arg_list bank_dirs = {.n = 0};
    const char *pos[SL_ARG_POS_MAX];
    const struct sl_arg_opt opts[] = {
        {.name = "--full",
         .kind = SL_ARG_FLAG,
         .out = &full,
         .group = "Check",
         .help = "read every byte and check every crc"},
        {.name = "--threads",
         .kind = SL_ARG_INT,
         .out = &threads,
         .group = "Check",
         .metavar = "N",
         .help = "threads that read and check; one read each is under way",
         .def = "one per core",
         .min = 1,
         .max = 1024},
        {.name = "--bank-dir",
         .kind = SL_ARG_REPEAT,
         .out = &bank_dirs,
         .group = "Input",
         .metavar = "DIR",
         .help = "also look for the pack's expert banks here; may be repeated"},
        {.name = "--json",
         .kind = SL_ARG_FLAG,
         .out = &json,
         .group = "Output",
         .help = "one JSON object: ok, faults, notes, counts, bytes"},
    };
    const struct sl_arg_cmd cmd = {
        .name = "verify",
        .about = "Says whether a pack is whole; names each file, tensor or expert that is not.",
        .example = "sluice verify k3.pack --full",
        .pos = {"PACK"},
        .min_pos = 1,
        .opts = opts,
        .n_opts = SL_ARG_COUNT(opts),
        .notes = "Without --full structure, sizes, pack.json and tokenizer are checked. Exit "
                 "status 4 when there is a\n"
                 "fault; each is one line on stdout.",
    };
    int status = sl_args_parse(&cmd, argc, argv, pos);
    if (status != SL_ARGS_GO) return status;

    struct sl_err err = {0};
    struct answer a = {.json = json, .complete = true};
    const struct request q = {.path = pos[0],
                              .full = full,
                              .threads = threads ? (int)threads : sl_cpu_count(),
                              .bank_dirs = &bank_dirs};
    a.fault_list = cJSON_CreateArray();
    a.note_list = cJSON_CreateArray();
    int rc = a.fault_list && a.note_list
                 ? verify(&q, &a, &err)
                 : sl_fail(&err, SL_E_NOMEM, NULL, "verify", "out of memory");
    cJSON_Delete(a.fault_list);
    cJSON_Delete(a.note_list);
    if (rc) return sl_cmd_fail(&err);
    return a.faults ? sl_exit_status(SL_E_PACK) : 0;
}
