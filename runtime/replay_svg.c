/* One chart: share of the experts in memory across, share of requests found there upwards.
 *
 * Lines are told apart by colour and by dashes, and named at their ends where there is room to the right
 * of the chart, so that no legend is needed. */
#include "runtime/replay_svg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"

enum { WIDTH = 720, HEIGHT = 440, LEFT = 64, RIGHT = 96, TOP = 48, BOTTOM = 56, LABEL_GAP = 16 };

static double x_of(double share)
{
    return LEFT + share * (WIDTH - LEFT - RIGHT);
}

static double y_of(double rate)
{
    return TOP + (1 - rate) * (HEIGHT - TOP - BOTTOM);
}

static void put_text(FILE *f, const char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '<')
            fputs("&lt;", f);
        else if (c == '&')
            fputs("&amp;", f);
        else if (c >= 0x20)
            fputc(c, f);
    }
}

static void put_frame(FILE *f, const struct sl_replay_curves *c, const char *title, double most)
{
    const char *name = strrchr(title, '/');
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\" font-family=\"sans-serif\" font-size=\"13\">\n"
            "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n"
            "<text x=\"%d\" y=\"24\" font-size=\"15\" fill=\"#222222\">Experts found in memory, ",
            WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT);
    put_text(f, name ? name + 1 : title);
    fprintf(f, " (%llu requests)</text>\n", (unsigned long long)c->requests);
    for (int i = 0; i <= 5; i++) {
        double y = y_of(i / 5.0);
        double x = x_of(i / 5.0);
        fprintf(
            f,
            "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#dddddd\"/>\n"
            "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" fill=\"#444444\">%d %%</text>\n"
            "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" fill=\"#444444\">%.0f %%</text>\n",
            LEFT, y, WIDTH - RIGHT, y, LEFT - 8, y + 4, i * 20, x, HEIGHT - BOTTOM + 20,
            most * i * 20);
    }
    fprintf(f,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" fill=\"#222222\">slots, share of %llu "
            "experts</text>\n",
            (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, (unsigned long long)c->all);
}

/* Ends of lines may be close together: their names are moved apart, upper ones first. */
static void place_labels(const struct sl_replay_curves *c, double y[SL_REPLAY_POLICIES])
{
    int order[SL_REPLAY_POLICIES];
    for (int p = 0; p < c->n_policies; p++) {
        int at = p;
        y[p] = y_of(c->rate[p][c->n - 1]) + 4;
        /* equal at the right end: the one that was higher before stands higher */
        for (; at > 0; at--) {
            int q = order[at - 1];
            double mine = c->rate[p][c->n - 1] + 1e-3 * c->rate[p][c->n / 2];
            double other = c->rate[q][c->n - 1] + 1e-3 * c->rate[q][c->n / 2];
            if (mine <= other) break;
            order[at] = q;
        }
        order[at] = p;
    }
    for (int i = 1; i < c->n_policies; i++)
        if (y[order[i]] < y[order[i - 1]] + LABEL_GAP) y[order[i]] = y[order[i - 1]] + LABEL_GAP;
}

int sl_replay_svg(const struct sl_replay_curves *c, const char *title, const char *path,
                  struct sl_err *err)
{
    static const char *const colours[] = {"#0b6e4f", "#c1440e", "#5b5b5b", "#3355aa"};
    static const char *const dashes[] = {"none", "7 4", "2 4", "10 3 2 3"};
    char *text = NULL;
    size_t len = 0;
    double y[SL_REPLAY_POLICIES];
    double most = (double)c->slots[c->n - 1] / (double)c->all; /* the right end of the chart */
    FILE *f = open_memstream(&text, &len);
    if (!f) return sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    put_frame(f, c, title, most);
    place_labels(c, y);
    for (int p = 0; p < c->n_policies; p++) {
        fprintf(f,
                "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"%s\" "
                "points=\"",
                colours[p % 4], dashes[p % 4]);
        for (int i = 0; i < c->n; i++)
            fprintf(f, "%s%.1f,%.1f", i ? " " : "", x_of(c->slots[i] / (most * (double)c->all)),
                    y_of(c->rate[p][i]));
        fprintf(f, "\"/>\n<text x=\"%d\" y=\"%.1f\" fill=\"%s\">%s</text>\n", WIDTH - RIGHT + 8,
                y[p], colours[p % 4], c->policies[p]);
    }
    fputs("</svg>\n", f);
    bool bad = ferror(f) != 0;
    if (fclose(f) || bad) {
        free(text);
        return sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    }
    int rc = sl_write_file(path, text, len, err);
    free(text);
    return rc;
}
