/* Records of the conversion journal: see the header for their forms. */
#define _GNU_SOURCE
#include "convert/resume.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "convert/calib_bank.h"
#include "base/version.h"

static int no_memory(const struct sl_journal *j, struct sl_err *err)
{
    return sl_fail(err, SL_E_NOMEM, j->path, NULL, "out of memory");
}

static int damaged(const struct sl_journal *j, const char *what, struct sl_err *err)
{
    return sl_fail(err, SL_E_PACK, j->path, what,
                   "does not fit this conversion; remove the unfinished pack and start over");
}

char *sl_resume_begin(const struct sl_plan *p, const struct sl_convert_opts *o)
{
    char *text = NULL;
    char *record = NULL;
    cJSON *id = cJSON_CreateObject();
    bool ok = id && cJSON_AddStringToObject(id, "version", SL_VERSION) &&
              cJSON_AddStringToObject(id, "source", p ? p->in->sha256 : "") &&
              cJSON_AddStringToObject(id, "experts", sl_fmt_name(o->experts)) &&
              cJSON_AddStringToObject(id, "trunk", sl_fmt_name(o->trunk)) &&
              cJSON_AddBoolToObject(id, "vision", !o->drop_vision);
    for (int g = 0; ok && g < SL_N_GROUPS; g++) {
        char key[32];
        if (o->trunk_of[g] == SL_FMT_NONE) continue;
        snprintf(key, sizeof key, "trunk %s", sl_group_name((enum sl_group)g));
        ok = cJSON_AddStringToObject(id, key, sl_fmt_name((enum sl_fmt)o->trunk_of[g]));
    }
    if (ok && o->experts == SL_FMT_MIX) ok = cJSON_AddNumberToObject(id, "mix", o->mix_bits);
    if (ok && p && p->calib)
        ok = cJSON_AddStringToObject(id, "calib", sl_calib_file_sha256(p->calib));
    if (ok && p && p->live) ok = cJSON_AddStringToObject(id, "calib", p->live_price.identity);
    cJSON *dirs = ok ? cJSON_AddArrayToObject(id, "bank_dirs") : NULL;
    for (int i = 0; dirs && ok && i < o->n_bank_dirs; i++)
        ok = cJSON_AddItemToArray(dirs, cJSON_CreateString(o->bank_dirs[i]));
    if (dirs && ok) text = cJSON_PrintUnformatted(id);
    cJSON_Delete(id);
    if (text && asprintf(&record, "begin %s", text) < 0) record = NULL;
    cJSON_free(text);
    return record;
}

static int differs(const struct sl_journal *j, const cJSON *had, const cJSON *asked,
                   const char *dst, struct sl_err *err)
{
    char *a = had ? cJSON_PrintUnformatted(had) : NULL;
    char *b = cJSON_PrintUnformatted(asked);
    int rc = a && b
                 ? sl_fail(err, SL_E_ARG, dst, asked->string,
                           "an unfinished conversion with %s is here, asked was %s: run it again "
                           "with the same source and options, or remove %s to start over",
                           a, b, dst)
                 : damaged(j, "begin", err);
    cJSON_free(a);
    cJSON_free(b);
    return rc;
}

int sl_resume_check(const struct sl_journal *j, const char *begin, const char *dst,
                    bool check_source, struct sl_err *err)
{
    const char *was = sl_journal_find(j, "begin");
    if (!was) return damaged(j, "begin", err);
    cJSON *had = cJSON_Parse(was);
    cJSON *asked = cJSON_Parse(strchr(begin, ' ') + 1);
    int rc = had && asked ? 0 : damaged(j, "begin", err);
    for (const cJSON *k = asked && had ? asked->child : NULL; !rc && k; k = k->next) {
        if (!check_source && !strcmp(k->string, "source")) continue;
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(had, k->string);
        if (!v || !cJSON_Compare(v, k, true)) rc = differs(j, v, k, dst, err);
    }
    cJSON_Delete(had);
    cJSON_Delete(asked);
    return rc;
}

static char *scan_record(const struct sl_plan_bank *b, int n)
{
    char *text = malloc((size_t)n + 32);
    if (!text) return NULL;
    int at = snprintf(text, 32, "scan %d ", b->layer);
    for (int x = 0; x < n; x++) text[at + x] = (char)('0' + b->escape[x]);
    text[at + n] = 0;
    return text;
}

int sl_resume_create(struct sl_journal *j, const char *begin, const struct sl_plan *p,
                     struct sl_err *err)
{
    char **records = calloc((size_t)p->n_banks + 1, sizeof *records);
    bool ok = records && (records[0] = strdup(begin)) != NULL;
    for (int i = 0; ok && i < p->n_banks; i++)
        ok = (records[1 + i] = scan_record(&p->banks[i], p->in->cfg.n_experts)) != NULL;
    int rc = ok ? sl_journal_create(j, (const char *const *)records, p->n_banks + 1, err)
                : no_memory(j, err);
    for (int i = 0; records && i <= p->n_banks; i++) free(records[i]);
    free(records);
    return rc;
}

int sl_resume_scan(const struct sl_journal *j, struct sl_plan *p, struct sl_err *err)
{
    int n = p->in->cfg.n_experts;
    for (int i = 0; i < p->n_banks; i++) {
        struct sl_plan_bank *b = &p->banks[i];
        char key[32];
        snprintf(key, sizeof key, "scan %d", b->layer);
        const char *digits = sl_journal_find(j, key);
        if (!digits || strlen(digits) != (size_t)n) return damaged(j, key, err);
        for (int x = 0; x < n; x++) {
            if (digits[x] < '0' || digits[x] >= '0' + p->n_layouts) return damaged(j, key, err);
            b->escape[x] = (uint8_t)(digits[x] - '0');
        }
    }
    return 0;
}

int sl_resume_note_unit(struct sl_journal *j, const struct sl_unit *u, struct sl_err *err)
{
    int n = u->range ? u->range->n : 0;
    char *text = malloc(sizeof u->name + 16 + 9 * (size_t)n);
    if (!text) return no_memory(j, err);
    int at = sprintf(text, "unit %s", u->name);
    for (int i = 0; i < n; i++)
        at += sprintf(text + at, " %08" PRIx32, u->file->tensors[u->range->first + i].crc32);
    int rc = sl_journal_append(j, text, err);
    free(text);
    return rc;
}

int sl_resume_units(const struct sl_journal *j, struct sl_plan *p, bool *done, struct sl_err *err)
{
    for (int i = 0; i < sl_plan_n_units(p); i++) {
        struct sl_unit u;
        char key[32];
        sl_plan_unit(p, i, &u);
        if (u.kind == SL_UNIT_NONE) continue;
        snprintf(key, sizeof key, "unit %s", u.name);
        const char *at = sl_journal_find(j, key);
        done[i] = at;
        for (int k = 0; at && u.range && k < u.range->n; k++) {
            char *end;
            unsigned long v = strtoul(at, &end, 16);
            if (end != at + 8 + (*at == ' ')) return damaged(j, key, err);
            u.file->tensors[u.range->first + k].crc32 = (uint32_t)v;
            at = end;
        }
    }
    return 0;
}

int sl_resume_note_calib(struct sl_journal *j, int layer, struct sl_err *err)
{
    char text[32];
    snprintf(text, sizeof text, "calib %d", layer);
    return sl_journal_append(j, text, err);
}

int sl_resume_calib_layers(const struct sl_journal *j)
{
    int n = 0;
    char key[32];
    for (; n < SL_MAX_LAYERS; n++) {
        snprintf(key, sizeof key, "calib %d", n);
        if (!sl_journal_find(j, key)) break;
    }
    return n;
}

int sl_resume_note_freed(struct sl_journal *j, const char *shard, struct sl_err *err)
{
    char text[512];
    snprintf(text, sizeof text, "freed %s", shard);
    return sl_journal_append(j, text, err);
}

bool sl_resume_freed(const struct sl_journal *j, const char *shard)
{
    char key[512];
    snprintf(key, sizeof key, "freed %s", shard);
    return sl_journal_find(j, key);
}
