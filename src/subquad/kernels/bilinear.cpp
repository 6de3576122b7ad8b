// DBA's self-attention of float32 (see ops/bilinear.py), forward: all that is not as long as the sequence stays in the
// cache, and each tile of tokens is read twice.
//
//     G = [Z W_Q; Z W_K; F_c; F_r]      [W_Q R; W_K R] as rows of R W_Q, R W_K
//     L = X Gᵀ                          A = softmax over tokens of the first 3 p columns, transposed, times X
//     Pᵀ = softmax((R W_K A_k)ᵀ (R W_Q A_q + R b_Q))      Uᵀ = (W_V A_vᵀ + b_V) Pᵀ      Oᵀ = W_O Uᵀ + b_O
//     Y = softmax over p of (X F_rᵀ + f_r) O
//
// Rows that are compressed lie transposed, [d, p], where vectors run over p.

#include <omp.h>

#include "matrices.h"

namespace {

constexpr long TOKENS = 96; // of a tile
constexpr float LEAST = -3e38f;

struct Call {
    long batch, tokens, dim, p, e, heads, z_step, threads;
    float root; // of the scale of the logits among rows
    const float *x, *z, *wq, *bq, *wk, *wv, *bv, *fc, *fr, *br, *wo, *bo, *r;
    const unsigned char *seen; // [batch, tokens] or null
    float *y, *a, *scratch;    // a: [batch, 3 p, d]
};

// Where the parts of a team's memory lie.
struct Room {
    float *zr, *gq, *gk, *g, *turned, *q, *k, *v, *weights, *u, *o, *rows, *spread, *own;
    long each; // numbers of one thread: accumulators, maxima, sums, logits of a tile
    long size;

    Room(const Call &c, float *at, long team) {
        const long d = c.dim, p = c.p, s = p + c.e;
        float *from = at;
        auto take = [&](long count) { return from += whole(count), from - whole(count); };
        zr = take(s * d), gq = take(s * d), gk = take(s * d), g = take(4 * p * d), turned = take(3 * p * d);
        q = take(c.e * p), k = take(c.e * p), v = take(d * p), weights = take(c.heads * p * p), u = take(d * p);
        o = take(d * p), rows = take(p * d), spread = take(c.tokens * p);
        each = whole(3 * p * d) + 2 * whole(3 * p) + TOKENS * 4 * p;
        own = take(each * team);
        size = from - at;
    }
};

// [columns, rows] of [rows, columns], both multiples of LANES.
void transpose(float *to, long to_step, const float *from, long step, long rows, long columns) {
    for (long i = 0; i < rows; i += LANES)
        for (long j = 0; j < columns; j += LANES) {
            Vector square[LANES];
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++) square[r] = at(from + (i + r) * step + j);
            turn<1>(square);
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++) at(to + (j + r) * to_step + i) = square[r];
        }
}

// Softmax down `count` vectors that lie `step` apart.
inline void softmax_down(float *x, long step, long count) {
    Vector top = at(x), sum = {};
    for (long j = 1; j < count; j++) top = at(x + j * step) > top ? at(x + j * step) : top;
    for (long j = 0; j < count; j++) sum += at(x + j * step) = exponential(at(x + j * step) - top);
    sum = 1.0f / sum;
    for (long j = 0; j < count; j++) at(x + j * step) *= sum;
}

// One row of the batch, by a team of threads that all run this.
struct Team {
    const Call &c;
    const Room room;
    const long rank, size;

    void wait() const {
        if (size > 1) {
#pragma omp barrier
        }
    }

    // This thread's part of `count` things, in whole units.
    template <class F> void share(long count, long unit, F f) const {
        const long units = (count + unit - 1) / unit, from = units * rank / size * unit;
        long to = units * (rank + 1) / size * unit;
        if (to > count) to = count;
        if (to > from) f(from, to - from);
    }

    // What depends on Z and on weights alone.
    void maps(long row) const {
        const long d = c.dim, p = c.p, s = p + c.e;
        share(s, 1, [&](long from, long count) {
            for (long i = from; i < from + count; i++)
                for (long j = 0; j < d; j++)
                    room.zr[i * d + j] = i < p ? c.z[row * c.z_step + i * d + j] : c.r[(i - p) * d + j] * c.root;
        });
        wait();
        share(d, LANES * VECTORS, [&](long from, long count) {
            multiply(room.gq + from, d, {room.zr, d, 1}, c.wq + from, d, s, count, d, false);
            multiply(room.gk + from, d, {room.zr, d, 1}, c.wk + from, d, s, count, d, false);
            const float *parts[] = {room.gq, room.gk, c.fc, c.fr};
            for (long part = 0; part < 4; part++)
                transpose(room.g + from * 4 * p + part * p, 4 * p, parts[part] + from, d, p, count);
        });
        wait();
    }

    // Adds a tile of tokens to what this thread has compressed, and leaves its weights of the way back.
    void compress(long row, long first, long count, float *own) const {
        const long d = c.dim, p = c.p, width = 4 * p;
        float *top = own + whole(3 * p * d), *sum = top + whole(3 * p), *logits = sum + whole(3 * p);
        const float *x = c.x + (row * c.tokens + first) * d;
        multiply(logits, width, {x, d, 1}, room.g, width, count, width, d, false);
        for (long i = 0; i < count; i++) {
            float *weights = room.spread + (first + i) * p, most = LEAST, total = 0;
            for (long j = 0; j < p; j++) weights[j] = logits[i * width + 3 * p + j] + c.br[j];
            for (long j = 0; j < p; j++) most = weights[j] > most ? weights[j] : most;
            for (long j = 0; j < p; j += LANES) at(weights + j) = exponential(at(weights + j) - most);
            for (long j = 0; j < p; j++) total += weights[j];
            for (long j = 0; j < p; j++) weights[j] *= 1 / total;
        }
        const unsigned char *seen = c.seen ? c.seen + row * c.tokens + first : nullptr;
        for (long j = 0; j < 3 * p; j += LANES) {
            const Vector before = at(top + j);
            Vector most = before;
            for (long i = 0; i < count; i++) {
                const Vector other = at(logits + i * width + j);
                if (!seen || seen[i]) most = other > most ? other : most;
            }
            const Vector shrink = exponential(before - most);
            Vector total = at(sum + j) * shrink;
            for (long i = 0; i < count; i++) {
                Vector &weight = at(logits + i * width + j);
                weight = seen && !seen[i] ? Vector{} : exponential(weight - most);
                total += weight;
            }
            at(top + j) = most, at(sum + j) = total;
            for (long r = 0; r < LANES; r++)
                if (shrink[r] != 1)
                    for (long k = 0; k < d; k += LANES) at(own + (j + r) * d + k) *= shrink[r];
        }
        multiply(own, d, {logits, 1, width}, x, d, 3 * p, d, count, true);
    }

    // A of all threads' parts.
    void gather(long row) const {
        const long d = c.dim, p = c.p;
        share(3 * p, LANES, [&](long from, long count) {
            for (long j = from; j < from + count; j++) {
                const long tops = whole(3 * p * d) + j, sums = tops + whole(3 * p);
                float most = LEAST, total = 0, part[size];
                for (long t = 0; t < size; t++)
                    if (room.own[t * room.each + tops] > most) most = room.own[t * room.each + tops];
                for (long t = 0; t < size; t++) {
                    part[t] = exponential(Vector{} + (room.own[t * room.each + tops] - most))[0];
                    total += part[t] * room.own[t * room.each + sums];
                }
                float *a = c.a + (row * 3 * p + j) * d;
                for (long k = 0; k < d; k += LANES) {
                    Vector whole_sum = {};
                    for (long t = 0; t < size; t++) whole_sum += part[t] * at(room.own + t * room.each + j * d + k);
                    at(a + k) = total == 0 ? Vector{} : whole_sum / total;
                }
            }
            transpose(room.turned + from, 3 * p, c.a + (row * 3 * p + from) * d, d, count, d);
        });
        wait();
    }

    // O, the rows that the way back mixes.
    void mix() const {
        const long d = c.dim, p = c.p, e = c.e, each = e / c.heads, channels = d / c.heads;
        share(2 * e, e, [&](long from, long count) {
            if (from == 0) {
                multiply(room.q, p, {room.gq + p * d, d, 1}, room.turned, 3 * p, e, p, d, false);
                for (long i = 0; i < e; i++) {
                    float bias = 0;
                    for (long j = 0; j < d; j++) bias += room.zr[(p + i) * d + j] * c.bq[j];
                    for (long j = 0; j < p; j += LANES) at(room.q + i * p + j) += bias;
                }
            }
            if (from + count > e)
                multiply(room.k, p, {room.gk + p * d, d, 1}, room.turned + p, 3 * p, e, p, d, false);
        });
        affine(room.v, c.wv, c.bv, room.turned + 2 * p, 3 * p);
        wait();
        share(c.heads, 1, [&](long from, long count) {
            for (long h = from; h < from + count; h++) {
                float *weights = room.weights + h * p * p;
                multiply(weights, p, {room.k + h * each * p, 1, p}, room.q + h * each * p, p, p, p, each, false);
                for (long i = 0; i < p; i += LANES) softmax_down(weights + i, p, p);
                multiply(room.u + h * channels * p, p, {room.v + h * channels * p, p, 1}, weights, p, channels, p, p,
                         false);
            }
        });
        wait();
        affine(room.o, c.wo, c.bo, room.u, p);
        share(d, LANES, [&](long from, long count) {
            transpose(room.rows + from, d, room.o + from * p, p, count, p);
        });
        wait();
    }

    // W Bᵀ + b: this thread's part of the d rows, of p numbers each.
    void affine(float *to, const float *w, const float *bias, const float *from, long step) const {
        const long d = c.dim, p = c.p;
        share(d, LANES, [&](long first, long count) {
            multiply(to + first * p, p, {w + first * d, d, 1}, from, step, count, p, d, false);
            for (long i = first; i < first + count; i++)
                for (long j = 0; j < p; j += LANES) at(to + i * p + j) += bias[i];
        });
    }

    void run(long row, bool first) const {
        const long d = c.dim, p = c.p;
        if (first || c.z_step) maps(row);
        float *own = room.own + rank * room.each;
        for (long i = 0; i < whole(3 * p * d); i++) own[i] = 0;
        for (long i = 0; i < whole(3 * p); i++) own[whole(3 * p * d) + i] = LEAST, own[whole(3 * p * d) + whole(3 * p) + i] = 0;
        share(c.tokens, 1, [&](long from, long count) {
            for (long i = from; i < from + count; i += TOKENS)
                compress(row, i, from + count - i < TOKENS ? from + count - i : TOKENS, own);
        });
        wait();
        gather(row);
        mix();
        share(c.tokens, 1, [&](long from, long count) {
            for (long i = from; i < from + count; i += TOKENS)
                multiply(c.y + (row * c.tokens + i) * d, d, {room.spread + i * p, p, 1}, room.rows, d,
                         from + count - i < TOKENS ? from + count - i : TOKENS, d, p, false);
        });
        wait();
    }
};

inline long team(const Call &call) { return call.batch < call.threads ? call.threads : 1; }

} // namespace

extern "C" {

// Numbers that all threads need together.
long room(const Call *call) { return Room(*call, nullptr, team(*call)).size * (call->threads / team(*call)); }

void forward(const Call *call) {
    const long size = team(*call), each = Room(*call, nullptr, size).size;
#pragma omp parallel num_threads(call->threads)
    {
        const long rank = omp_get_thread_num(), teams = call->threads / size, mine = size > 1 ? 0 : rank;
        const Team team{*call, Room(*call, call->scratch + mine * each, size), size > 1 ? rank : 0, size};
        for (long row = mine; row < call->batch; row += teams) team.run(row, row == mine);
    }
}
}
