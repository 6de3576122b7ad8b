// Softmax attention in float32 over so few keys that the logits of 64 queries fit into a core's cache.
//
//     Y = softmax(scale · Q Kᵀ) V          L = log Σ_j exp(scale · q kⱼ), kept for the gradients
//     P = exp(scale · Q Kᵀ - L)            dV = Pᵀ dY
//     dS = scale · P ⊙ (dY Vᵀ - D)         D = Σ_j P ⊙ dY Vᵀ      dQ = dS K      dK = dSᵀ Q
//
// With dropout, M is 0 at dropped weights and 1 / P(keep) elsewhere; Y and dV take M ⊙ P for P, and dS and D take
// M ⊙ dY Vᵀ for dY Vᵀ.
//
// Logits are stored transposed, as [keys, queries]: one instruction processes the logits of 8 or 16 queries, and the
// maximum, the exponential and the sums over keys need no operations across lanes. All products use `multiply`.

#include <cstdint>
#include <omp.h>

#include "matrices.h"

namespace {

constexpr long QUERIES = 64;     // queries of a tile
constexpr float HIDDEN = -3e38f; // logit of a masked key

typedef unsigned char Bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef int16_t Shorts __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

// Keys and values in one tensor each. Strides of all operands are those of batch, heads and tokens; dk and dv have a
// leading axis of chunks.
struct Part {
    long keys;
    const float *k, *v;
    float *dk, *dv;
    long k_step[3], v_step[3], dk_step[4], dv_step[4];
};

// The operands of one call. Keys consist of one or two parts, in this order.
struct Call {
    long batch, heads, queries, keys, features, channels, chunks, threads, parts;
    float scale, share;         // share: 1 / P(keep)
    long least;                 // weights whose random bits are below it are dropped
    const float *q, *dy;
    const unsigned char *seen;  // keys are its fourth axis; null if no key is masked
    const int16_t *bits;        // random, [batch, heads, queries, keys]; null without dropout
    float *y, *lse, *scratch;  // lse: [batch, heads, queries]; scratch: `threads` times `room` floats
    float *dq;
    long q_step[3], y_step[3], dy_step[3], dq_step[3], seen_step[4];
    Part part[2];
};

// One tile: up to 64 queries of one head of one row of the batch.
struct Tile {
    const Call &call;
    long row, head, first, count, width; // width: the count rounded up to whole vectors

    Tile(const Call &call, long row, long head, long number)
        : call(call), row(row), head(head), first(number * QUERIES),
          count(call.queries - first < QUERIES ? call.queries - first : QUERIES), width(round_up(count)) {}

    // Calls f(part, index of its first key).
    template <class F> inline void each_part(F f) const {
        f(call.part[0], 0);
        if (call.parts == 2) f(call.part[1], call.part[0].keys);
    }

    // Transposes [count, channels] to [channels, width] and multiplies by `by`; zeros beyond `count`.
    void transpose(float *to, const float *from, long step, long channels, float by) const {
        for (long i = 0; i < width; i += LANES)
            for (long d = 0; d < channels; d += LANES) {
                Vector rows[LANES];
#pragma GCC unroll 16
                for (int r = 0; r < LANES; r++) rows[r] = i + r < count ? at(from + (i + r) * step + d) * by : Vector{};
                turn<1>(rows);
#pragma GCC unroll 16
                for (int r = 0; r < LANES; r++) at(to + (d + r) * width + i) = rows[r];
            }
    }

    void hide(float *logits) const {
        const long *step = call.seen_step;
        const unsigned char *seen = call.seen + offset(step, row, head, first);
        for (long j = 0; j < call.keys; j++, seen += step[3], logits += width) {
            if (step[2] == 0) {
                if (!*seen)
                    for (long i = 0; i < width; i += LANES) at(logits + i) = Vector{} + HIDDEN;
                continue;
            }
            long i = 0;
            for (; count - i >= LANES; i += LANES) {
                const Integers shown = __builtin_convertvector(*reinterpret_cast<const Bytes *>(seen + i), Integers);
                at(logits + i) = shown ? at(logits + i) : Vector{} + HIDDEN;
            }
            for (; i < count; i++) logits[i] = seen[i] ? logits[i] : HIDDEN;
        }
    }

    // M, [keys, width].
    void kept(float *to) const {
        const int16_t *bits = call.bits + ((row * call.heads + head) * call.queries + first) * call.keys;
        const Integers least = Integers{} + static_cast<int>(call.least);
        for (long j = 0; j < call.keys; j += LANES) {
            const long some = call.keys - j < LANES ? call.keys - j : LANES;
            for (long i = 0; i < width; i += LANES) {
                Vector rows[LANES];
#pragma GCC unroll 16
                for (int r = 0; r < LANES; r++) {
                    Shorts drawn = {};
                    const int16_t *from = bits + (i + r) * call.keys + j;
                    if (i + r < count) {
                        if (some == LANES) drawn = *reinterpret_cast<const Shorts *>(from);
                        else
                            for (long d = 0; d < some; d++) drawn[d] = from[d];
                    }
                    rows[r] = __builtin_convertvector(drawn, Integers) >= least ? Vector{} + call.share : Vector{};
                }
                turn<1>(rows);
                for (long d = 0; d < some; d++) at(to + (j + d) * width + i) = rows[d];
            }
        }
    }

    // scale · K Qᵀ, [keys, width]; `turned` is scratch memory for scale · Qᵀ.
    void logits(float *to, float *turned) const {
        transpose(turned, call.q + offset(call.q_step, row, head, first), call.q_step[2], call.features, call.scale);
        each_part([&](const Part &part, long from) {
            const Matrix keys = {part.k + offset(part.k_step, row, head, 0), part.k_step[2], 1};
            multiply(to + from * width, width, keys, turned, width, part.keys, width, call.features, false);
        });
        if (call.seen) hide(to);
    }

    void forward(float *room) const {
        float *weights = room + call.features * QUERIES, *share = weights + call.keys * QUERIES;
        float *mask = share + 2 * QUERIES;
        logits(weights, room);
        if (call.bits) kept(mask);
        for (long i = 0; i < width; i += LANES) {
            Vector top = at(weights + i), sum = {};
            for (long j = 1; j < call.keys; j++) {
                const Vector other = at(weights + j * width + i);
                top = top > other ? top : other;
            }
            for (long j = 0; j < call.keys; j++) {
                Vector &weight = at(weights + j * width + i);
                sum += weight = exponential(weight - top);
            }
            at(share + i) = (top <= HIDDEN) & (sum == sum) ? Vector{} : 1.0f / sum; // keeps NaN
            at(share + QUERIES + i) = top;
        }
        if (call.bits)
            for (long i = 0; i < call.keys * width; i += LANES) at(weights + i) *= at(mask + i);
        float *y = call.y + offset(call.y_step, row, head, first);
        each_part([&](const Part &part, long from) {
            const float *values = part.v + offset(part.v_step, row, head, 0);
            multiply(y, call.y_step[2], {weights + from * width, 1, width}, values, part.v_step[2], count,
                     call.channels, part.keys, from);
        });
        float *lse = call.lse + (row * call.heads + head) * call.queries + first;
        for (long i = 0; i < count; i++, y += call.y_step[2]) {
            // A query without visible keys gets 0; multiplying by 0 would keep infinite values and NaN.
            for (long d = 0; d < call.channels; d++) y[d] = share[i] ? y[d] * share[i] : 0;
            lse[i] = share[i] ? share[QUERIES + i] - __builtin_logf(share[i]) : -HIDDEN;
        }
    }

    void backward(float *room, long chunk, bool add) const {
        float *turned = room, *weights = turned + (call.features + call.channels) * QUERIES;
        float *slopes = weights + call.keys * QUERIES, *lse = slopes + call.keys * QUERIES, *mask = lse + QUERIES;
        logits(weights, turned);
        if (call.bits) kept(mask);
        const float *kept = call.lse + (row * call.heads + head) * call.queries + first;
        for (long i = 0; i < width; i++) lse[i] = i < count ? kept[i] : -HIDDEN;
        const float *dy = call.dy + offset(call.dy_step, row, head, first);
        transpose(turned, dy, call.dy_step[2], call.channels, 1);
        each_part([&](const Part &part, long from) {
            const Matrix values = {part.v + offset(part.v_step, row, head, 0), part.v_step[2], 1};
            multiply(slopes + from * width, width, values, turned, width, part.keys, width, call.channels, false);
        });
        for (long i = 0; i < width; i += LANES) {
            Vector mean = {};
            for (long j = i; j < call.keys * width; j += width) {
                at(weights + j) = exponential(at(weights + j) - at(lse + i));
                if (call.bits) at(slopes + j) *= at(mask + j);
                mean += at(weights + j) * at(slopes + j);
            }
            for (long j = i; j < call.keys * width; j += width) {
                at(slopes + j) = at(weights + j) * (at(slopes + j) - mean) * call.scale;
                if (call.bits) at(weights + j) *= at(mask + j);
            }
        }
        const float *q = call.q + offset(call.q_step, row, head, first);
        float *dq = call.dq + offset(call.dq_step, row, head, first);
        each_part([&](const Part &part, long from) {
            const Matrix weight = {weights + from * width, width, 1}, slope = {slopes + from * width, width, 1};
            const float *k = part.k + offset(part.k_step, row, head, 0);
            float *dk = part.dk + chunk * part.dk_step[0] + offset(part.dk_step + 1, row, head, 0);
            float *dv = part.dv + chunk * part.dv_step[0] + offset(part.dv_step + 1, row, head, 0);
            multiply(dv, part.dv_step[3], weight, dy, call.dy_step[2], part.keys, call.channels, count, add);
            multiply(dk, part.dk_step[3], slope, q, call.q_step[2], part.keys, call.features, count, add);
            multiply(dq, call.dq_step[2], {slope.data, 1, width}, k, part.k_step[2], count, call.features, part.keys,
                     from);
        });
    }
};

inline long tiles(const Call &call) { return (call.queries + QUERIES - 1) / QUERIES; }

} // namespace

extern "C" {

long tile_size() { return QUERIES; }

// Size of the scratch memory of one thread, in floats.
long room(const Call *call) {
    return round_up(QUERIES * (call->features + call->channels + (call->bits ? 3 : 2) * call->keys + 2));
}

void forward(const Call *call) {
    const long each = tiles(*call), items = call->batch * call->heads * each, size = room(call);
#pragma omp parallel for num_threads(call->threads) schedule(static)
    for (long item = 0; item < items; item++)
        Tile(*call, item / each / call->heads, item / each % call->heads, item % each)
            .forward(call->scratch + omp_get_thread_num() * size);
}

// The queries of a head are divided into `chunks`. Each chunk has its own gradients of keys and values; the caller sums
// them.
void backward(const Call *call) {
    const long each = tiles(*call), items = call->batch * call->heads * call->chunks, size = room(call);
#pragma omp parallel for num_threads(call->threads) schedule(static)
    for (long item = 0; item < items; item++) {
        const long chunk = item % call->chunks, head = item / call->chunks % call->heads;
        const long row = item / call->chunks / call->heads;
        const long from = chunk * each / call->chunks, to = (chunk + 1) * each / call->chunks;
        for (long number = from; number < to; number++)
            Tile(*call, row, head, number).backward(call->scratch + omp_get_thread_num() * size, chunk, number > from);
    }
}
}
