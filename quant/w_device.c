/* See w_device.h: a thin cover, so that no caller asks how this build was made. */
#include "quant/w_device.h"

bool sl_w_device_takes(enum sl_fmt fmt)
{
    return fmt == SL_FMT_W26 || fmt == SL_FMT_W36;
}

#if SL_HAVE_CUDA

#include "kernels/cuda/cuda_trellis.h"

int sl_w_device_open(struct sl_w_device **out, size_t max_weights, int max_cols, struct sl_err *err)
{
    return sl_cuda_encoder_open((struct sl_cuda_encoder **)out, 0, max_weights, max_cols, err);
}

void sl_w_device_close(struct sl_w_device *d)
{
    sl_cuda_encoder_close((struct sl_cuda_encoder *)d);
}

int sl_w_device_encode(struct sl_w_device *d, const struct sl_w_job *job,
                       const struct sl_w_planes *out, struct sl_err *err)
{
    const struct sl_w_tables *t = job->tables;
    const struct sl_cuda_encode e = {.fmt = t->fmt,
                                     .table = t->fmt == SL_FMT_W36 ? t->t3 : t->t2,
                                     .rms = t->rms,
                                     .w = job->w,
                                     .rows = job->rows,
                                     .cols = job->cols,
                                     .h = job->h,
                                     .rounds = job->rounds,
                                     .codes = out->codes,
                                     .scales = out->scales,
                                     .row_scales = out->row_scales};
    return sl_cuda_encode((struct sl_cuda_encoder *)d, &e, err);
}

#else

int sl_w_device_open(struct sl_w_device **out, size_t max_weights, int max_cols, struct sl_err *err)
{
    (void)max_weights, (void)max_cols;
    *out = NULL;
    return sl_fail(err, SL_E_DEVICE, NULL, "--device",
                   "cuda: this build has no GPU part (make CUDA=1)");
}

void sl_w_device_close(struct sl_w_device *d)
{
    (void)d;
}

int sl_w_device_encode(struct sl_w_device *d, const struct sl_w_job *job,
                       const struct sl_w_planes *out, struct sl_err *err)
{
    (void)d, (void)job, (void)out;
    return sl_fail(err, SL_E_DEVICE, NULL, NULL, "no GPU part");
}

#endif
