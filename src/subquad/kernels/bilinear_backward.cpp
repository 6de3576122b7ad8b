// Backward pass of bilinear.cpp, in the same notation; ∂X is the gradient of the loss with respect to X.
//
//     ∂O = W'_r ∂Y                       ∂L_r = W'_r ⊙ (∂Y Oᵀ - rows' sums of W'_r ⊙ ∂Y Oᵀ)     (first pass)
//     ∂W_O = ∂Oᵀ U,  ∂U = ∂O W_O         ∂P = ∂U Vᵀ,  ∂V = Pᵀ ∂U,  ∂N = P ⊙ (∂P - rows' sums of P ⊙ ∂P)
//     ∂W_V = ∂Vᵀ A_v,  ∂A_v = ∂V W_V     ∂Q = ∂N K,  ∂K = ∂Nᵀ Q,  ∂(R W_Q) = ∂Qᵀ A_q,  ∂A_q = ∂Q R W_Q, the same for K
//     ∂L_j = W_j ⊙ (X ∂A_jᵀ - A_j · ∂A_j)    ∂G = ∂Lᵀ X    ∂X = W ∂A + ∂L G                     (second pass)
//     ∂W_Q = [Z; R]ᵀ ∂G_q    ∂[Z; R] = ∂G_q W_Qᵀ + ∂G_k W_Kᵀ
//
// where W are the weights that are normalised over tokens; A_j · ∂A_j is the sum over tokens of W_j ⊙ X ∂A_jᵀ.

#include "bilinear.h"

namespace {

struct Gradients {
    const float *y, *a; // inputs: ∂Y, and ∂A or null; all others are results
    float *x, *z, *wq, *bq, *wk, *wv, *bv, *fc, *fr, *br, *wo, *bo, *r, *scratch;
};

// Memory of one thread: its contribution to ∂O, ∂G and ∂b_r, A · ∂A, and [W, ∂L] of a tile.
struct Own {
    float *o, *g, *br, *shift, *tile;
    long size;

    Own(const Call &c, float *at) {
        Memory m(at);
        o = m.take(c.p * c.dim), g = m.take(4 * c.p * c.dim), br = m.take(c.p), shift = m.take(3 * c.p);
        tile = m.take(TOKENS * 7 * c.p), size = m.size();
    }
};

// Backward pass of one row of the batch, by all threads. A gradient has the name of its variable.
struct BackwardPass : ThreadTeam {
    const Gradients &to;
    const long number, padded; // padded: number of rows of Z and R, rounded up to whole vectors
    const Maps maps;
    const Row row;
    const float *a;                            // [3 p, d]
    float *o, *turned_o, *u, *v, *turned_a;    // [p, d], [d, p]; ∂Aᵀ: [d, 3 p]
    float *q, *k, *bias;                       // [e, p]; bias: ∂(R b_Q)
    float *pairs, *turned_pairs;               // ∂Nᵀ and ∂N of each head
    float *stack, *spread, *rows_u;            // [∂A; G]; ∂L_r; U (not its gradient) as rows
    float *gq, *gk, *turned_q, *turned_k, *zr; // ∂([Z; R] W_Q), ∂([Z; R] W_K), their transposes, and ∂[Z; R]ᵀ
    float *own_at;
    long size_of_all;

    BackwardPass(const Call &c, const Gradients &to, long rank, long size, long number)
        : ThreadTeam{c, rank, size}, to(to), number(number), padded(round_up(c.p + c.e)), maps(c, maps_of(c, number)),
          row(c, row_of(c, number)), a(c.a + number * 3 * c.p * c.dim) {
        const long d = c.dim, p = c.p;
        Memory m(to.scratch);
        o = m.take(p * d), turned_o = m.take(p * d), u = m.take(p * d), v = m.take(p * d), rows_u = m.take(p * d);
        q = m.take(c.e * p), k = m.take(c.e * p), bias = m.take(c.e), turned_a = m.take(3 * p * d);
        pairs = m.take(c.heads * p * p), turned_pairs = m.take(c.heads * p * p);
        stack = m.take(7 * p * d), spread = m.take(c.tokens * p);
        gq = m.take(padded * d), gk = m.take(padded * d), zr = m.take(padded * d);
        turned_q = m.take(padded * d), turned_k = m.take(padded * d);
        own_at = m.take(size * Own(c, nullptr).size), size_of_all = m.size();
    }

    Own own(long thread) const { return Own(c, own_at + thread * Own(c, nullptr).size); }

    // First pass over the tokens: ∂O and ∂L_r.
    void expand() const {
        const long d = c.dim, p = c.p;
        const Own mine = own(rank);
        for (long i = 0; i < p * d; i++) mine.o[i] = 0;
        for (long j = 0; j < p; j++) mine.br[j] = 0;
        tiles([&](long from, long count) {
            const float *y = to.y + (number * c.tokens + from) * d, *weights = row.spread + from * p;
            float *logits = spread + from * p;
            multiply(logits, p, {y, d, 1}, row.o, p, count, p, d, false);
            for (long i = 0; i < count * p; i += p) {
                Vector total = {};
                for (long j = i; j < i + p; j += LANES) total += at(weights + j) * at(logits + j);
                total = fold(total, plus);
                for (long j = 0; j < p; j += LANES)
                    at(mine.br + j) += at(logits + i + j) = at(weights + i + j) * (at(logits + i + j) - total);
            }
            multiply(mine.o, d, {weights, 1, p}, y, d, p, d, count, true);
        });
        wait();
        share(d, LANES, [&](long from, long count) {
            for (long j = 0; j < p; j++)
                sum(o + j * d, false, from, count, [&](long t) { return own(t).o + j * d; }, size);
            sum(to.bo, number > 0, from, count, [&](long j) { return o + j * d; }, p);
            transpose(turned_o + from * p, p, o + from, d, p, count);
            transpose(rows_u + from, d, row.u + from * p, p, count, p);
        });
        if (rank == 0) sum(to.br, number > 0, 0, p, [&](long t) { return own(t).br; }, size);
        wait();
    }

    // Gradients of the attention between compressed rows.
    void mix() const {
        const long d = c.dim, p = c.p, e = c.e, width = e / c.heads, channels = d / c.heads, block = LANES * VECTORS;
        const bool fresh = number == 0 || c.z_step;
        share(d, block, [&](long from, long count) {
            multiply(to.wo + from, d, {turned_o, p, 1}, rows_u + from, d, d, count, p, number > 0);
            multiply(u + from, d, {o, d, 1}, c.wo + from, d, p, count, d, false);
        });
        wait();
        share(c.heads, 1, [&](long first, long count) {
            for (long h = first; h < first + count; h++) {
                const float *weights = row.weights + h * p * p, *of_u = u + h * channels;
                float *n = pairs + h * p * p, *turned = turned_pairs + h * p * p;
                multiply(turned, p, {of_u, d, 1}, row.v + h * channels * p, p, p, p, channels, false);
                transpose(n, p, turned, p, p, p);
                for (long i = 0; i < p; i += LANES) {
                    Vector total = {};
                    for (long j = i; j < i + p * p; j += p) total += at(weights + j) * at(n + j);
                    for (long j = i; j < i + p * p; j += p) at(n + j) = at(weights + j) * (at(n + j) - total);
                }
                transpose(turned, p, n, p, p, p);
                multiply(q + h * width * p, p, {row.k + h * width * p, p, 1}, n, p, width, p, p, false);
                multiply(k + h * width * p, p, {row.q + h * width * p, p, 1}, turned, p, width, p, p, false);
                multiply(v + h * channels, d, {weights, p, 1}, of_u, d, p, channels, p, false);
            }
        });
        wait();
        share(d, block, [&](long from, long count) {
            multiply(to.wv + from, d, {v, 1, d}, a + 2 * p * d + from, d, d, count, p, number > 0);
            sum(to.bv, number > 0, from, count, [&](long j) { return v + j * d; }, p);
            multiply(gq + p * d + from, d, {q, p, 1}, a + from, d, e, count, p, !fresh);
            multiply(gk + p * d + from, d, {k, p, 1}, a + p * d + from, d, e, count, p, !fresh);
            float *of_a = stack + from;
            multiply(of_a, d, {q, 1, p}, maps.gq + p * d + from, d, p, count, e, false);
            multiply(of_a + p * d, d, {k, 1, p}, maps.gk + p * d + from, d, p, count, e, false);
            multiply(of_a + 2 * p * d, d, {v, d, 1}, c.wv + from, d, p, count, d, false);
            const float *g[] = {maps.gq, maps.gk, c.fc, c.fr};
            for (long j = 0; j < p; j++)
                for (long part = 0; part < 4; part++)
                    sum(stack + ((3 + part) * p + j) * d, false, from, count, [&](long) { return g[part] + j * d; }, 1);
            for (long j = 0; to.a && j < 3 * p; j++)
                sum(stack + j * d, true, from, count, [&](long) { return to.a + (number * 3 * p + j) * d; }, 1);
            transpose(turned_a + from * 3 * p, 3 * p, of_a, d, 3 * p, count);
        });
        if (rank == 0)
            for (long i = 0; i < e; i++) {
                Vector total = {};
                for (long j = 0; j < p; j += LANES) total += at(q + i * p + j);
                bias[i] = fold(total, plus)[0] + (fresh ? 0 : bias[i]);
            }
        wait();
    }

    // Second pass over the tokens: ∂G and ∂X.
    void compress() const {
        const long d = c.dim, p = c.p, width = 7 * p;
        const bool fresh = number == 0 || c.z_step;
        const Own mine = own(rank);
        for (long i = 0; i < 4 * p * d; i++) mine.g[i] = 0;
        for (long j = 0; j < 3 * p; j++) {
            Vector total = {};
            for (long i = j * d; i < (j + 1) * d; i += LANES) total += at(a + i) * at(stack + i);
            mine.shift[j] = fold(total, plus)[0];
        }
        const unsigned char *seen = c.seen ? c.seen + number * c.tokens : nullptr;
        tiles([&](long from, long count) {
            const long place = (number * c.tokens + from) * d;
            multiply(mine.tile + 3 * p, width, {c.x + place, d, 1}, turned_a, 3 * p, count, 3 * p, d, false);
            for (long i = 0; i < count; i++) {
                float *weights = mine.tile + i * width, *logits = weights + 3 * p;
                const float *before = row.logits + (from + i) * 3 * p;
                for (long j = 0; j < 3 * p; j += LANES) {
                    const Vector weight = exponential(at(before + j) - at(row.top + j)) * at(row.inverse + j);
                    at(weights + j) = seen && !seen[from + i] ? Vector{} : weight;
                    at(logits + j) = at(weights + j) * (at(logits + j) - at(mine.shift + j));
                }
                for (long j = 0; j < p; j += LANES) at(logits + 3 * p + j) = at(spread + (from + i) * p + j);
            }
            multiply(to.x + place, d, {mine.tile, width, 1}, stack, d, count, d, width, false);
            multiply(mine.g, d, {mine.tile + 3 * p, 1, width}, c.x + place, d, 4 * p, d, count, true);
        });
        wait();
        share(d, LANES, [&](long from, long count) {
            float *g[] = {gq, gk, to.fc, to.fr};
            for (long j = 0; j < 4 * p; j++)
                sum(g[j / p] + j % p * d, j < 2 * p ? !fresh : number > 0, from, count,
                    [&](long t) { return own(t).g + j * d; }, size);
        });
        wait();
    }

    // Gradients of Z, R, W_Q, W_K and b_Q, from this row or, if all rows share Z, from all rows.
    void maps_back() const {
        const long d = c.dim, p = c.p, e = c.e;
        const bool add = c.z_step && number > 0;
        share(d, LANES * VECTORS, [&](long from, long count) {
            multiply(to.wq + from, d, {maps.zr, 1, d}, gq + from, d, d, count, p + e, add);
            multiply(to.wk + from, d, {maps.zr, 1, d}, gk + from, d, d, count, p + e, add);
            for (long i = p + e; i < padded; i++)
                for (long j = from; j < from + count; j++) gq[i * d + j] = gk[i * d + j] = 0;
            transpose(turned_q + from * padded, padded, gq + from, d, padded, count);
            transpose(turned_k + from * padded, padded, gk + from, d, padded, count);
        });
        wait();
        share(d, LANES, [&](long from, long count) {
            multiply(zr + from * padded, padded, {c.wq + from * d, d, 1}, turned_q, padded, count, padded, d, false);
            multiply(zr + from * padded, padded, {c.wk + from * d, d, 1}, turned_k, padded, count, padded, d, true);
            for (long j = from; j < from + count; j++) {
                float *of_z = to.z + number * c.z_step + j, total = add ? to.bq[j] : 0;
                for (long i = 0; i < p; i++) of_z[i * d] = zr[j * padded + i];
                for (long i = 0; i < e; i++) {
                    float &of_r = to.r[i * d + j];
                    of_r = (add ? of_r : 0) + c.root * (zr[j * padded + p + i] + bias[i] * c.bq[j]);
                    total += bias[i] * maps.zr[(p + i) * d + j];
                }
                to.bq[j] = total;
            }
        });
        wait();
    }

    // Sums `rows` rows over these columns into y; with `add`, on top of the previous content of y.
    template <class F> static void sum(float *y, bool add, long from, long count, F of_row, long rows) {
        for (long j = from; j < from + count; j += LANES) {
            Vector total = add ? at(y + j) : Vector{};
            for (long i = 0; i < rows; i++) total += at(of_row(i) + j);
            at(y + j) = total;
        }
    }

    void run() const {
        expand(), mix(), compress();
        if (number == c.batch - 1 || c.z_step) maps_back();
    }
};

} // namespace

extern "C" {

// Size of the scratch memory of all threads together, in floats.
long room(const Call *call) { return BackwardPass(*call, Gradients{}, 0, call->threads, 0).size_of_all; }

void backward(const Call *call, const Gradients *to) {
#pragma omp parallel num_threads(call->threads)
    for (long number = 0; number < call->batch; number++)
        BackwardPass(*call, *to, omp_get_thread_num(), omp_get_num_threads(), number).run();
}
}
