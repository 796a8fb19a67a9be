// Fourier transforms of a few points in registers; a part of fft_stages.h.
#pragma once

#include "fft_vectors.h"

namespace ferrule {
namespace FERRULE_ISA {

template <class V>
FERRULE_ALWAYS void Points4(V& r0, V& i0, V& r1, V& i1, V& r2, V& i2, V& r3, V& i3) {
  V pr = r0 + r2, pi = i0 + i2, qr = r0 - r2, qi = i0 - i2;
  V ur = r1 + r3, ui = i1 + i3, vr = r1 - r3, vi = i1 - i3;
  r0 = pr + ur, i0 = pi + ui;
  r1 = qr + vi, i1 = qi - vr;
  r2 = pr - ur, i2 = pi - ui;
  r3 = qr - vi, i3 = qi + vr;
}

// The transform of kRadix points in place; V is R or a vector of them.
template <class R, int kRadix, class V>
FERRULE_ALWAYS void Points(V* re, V* im) {
  if constexpr (kRadix == 2) {
    V r = re[0] - re[1], i = im[0] - im[1];
    re[0] += re[1], im[0] += im[1];
    re[1] = r, im[1] = i;
  } else if constexpr (kRadix == 3) {
    constexpr R kSin = static_cast<R>(0.866025403784438646763723170752936183);
    V tr = re[1] + re[2], ti = im[1] + im[2];
    V ur = (re[1] - re[2]) * kSin, ui = (im[1] - im[2]) * kSin;
    V mr = re[0] - tr * R(0.5), mi = im[0] - ti * R(0.5);
    re[0] += tr, im[0] += ti;
    re[1] = mr + ui, im[1] = mi - ur;
    re[2] = mr - ui, im[2] = mi + ur;
  } else if constexpr (kRadix == 4) {
    Points4(re[0], im[0], re[1], im[1], re[2], im[2], re[3], im[3]);
  } else if constexpr (kRadix == 5) {
    constexpr R c1 = static_cast<R>(0.309016994374947424102293417182819059);
    constexpr R c2 = static_cast<R>(-0.809016994374947424102293417182819059);
    constexpr R s1 = static_cast<R>(0.951056516295153572116439333379382143);
    constexpr R s2 = static_cast<R>(0.587785252292473129168705954639072769);
    V pr = re[1] + re[4], pi = im[1] + im[4], qr = re[1] - re[4], qi = im[1] - im[4];
    V ur = re[2] + re[3], ui = im[2] + im[3], vr = re[2] - re[3], vi = im[2] - im[3];
    V ar1 = re[0] + c1 * pr + c2 * ur, ai1 = im[0] + c1 * pi + c2 * ui;
    V ar2 = re[0] + c2 * pr + c1 * ur, ai2 = im[0] + c2 * pi + c1 * ui;
    V br1 = s1 * qr + s2 * vr, bi1 = s1 * qi + s2 * vi;
    V br2 = s2 * qr - s1 * vr, bi2 = s2 * qi - s1 * vi;
    re[0] += pr + ur, im[0] += pi + ui;
    re[1] = ar1 + bi1, im[1] = ai1 - br1;
    re[4] = ar1 - bi1, im[4] = ai1 + br1;
    re[2] = ar2 + bi2, im[2] = ai2 - br2;
    re[3] = ar2 - bi2, im[3] = ai2 + br2;
  } else if constexpr (kRadix == 7) {
    // As AnyPoints of fft_any.h.
    constexpr R c[3] = {static_cast<R>(0.623489801858733530525004884004239811),
                        static_cast<R>(-0.222520933956314404288902564496794759),
                        static_cast<R>(-0.900968867902419126236102319507445051)};
    constexpr R s[3] = {static_cast<R>(0.781831482468029808708444526674057750),
                        static_cast<R>(0.974927912181823607018131682993931217),
                        static_cast<R>(0.433883739117558120475768332848358755)};
    V pr[3], pi[3], qr[3], qi[3];
    for (int u = 0; u < 3; ++u) {
      pr[u] = re[u + 1] + re[6 - u], pi[u] = im[u + 1] + im[6 - u];
      qr[u] = re[u + 1] - re[6 - u], qi[u] = im[u + 1] - im[6 - u];
    }
    const V ar[3] = {re[0] + c[0] * pr[0] + c[1] * pr[1] + c[2] * pr[2],
                     re[0] + c[1] * pr[0] + c[2] * pr[1] + c[0] * pr[2],
                     re[0] + c[2] * pr[0] + c[0] * pr[1] + c[1] * pr[2]};
    const V ai[3] = {im[0] + c[0] * pi[0] + c[1] * pi[1] + c[2] * pi[2],
                     im[0] + c[1] * pi[0] + c[2] * pi[1] + c[0] * pi[2],
                     im[0] + c[2] * pi[0] + c[0] * pi[1] + c[1] * pi[2]};
    const V br[3] = {s[0] * qr[0] + s[1] * qr[1] + s[2] * qr[2], s[1] * qr[0] - s[2] * qr[1] - s[0] * qr[2],
                     s[2] * qr[0] - s[0] * qr[1] + s[1] * qr[2]};
    const V bi[3] = {s[0] * qi[0] + s[1] * qi[1] + s[2] * qi[2], s[1] * qi[0] - s[2] * qi[1] - s[0] * qi[2],
                     s[2] * qi[0] - s[0] * qi[1] + s[1] * qi[2]};
    re[0] += pr[0] + pr[1] + pr[2], im[0] += pi[0] + pi[1] + pi[2];
    for (int u = 0; u < 3; ++u) {
      re[u + 1] = ar[u] + bi[u], im[u + 1] = ai[u] - br[u];
      re[6 - u] = ar[u] - bi[u], im[6 - u] = ai[u] + br[u];
    }
  } else if constexpr (kRadix == 8) {
    constexpr R kHalf = static_cast<R>(0.707106781186547524400844362104849039);
    // Even and odd points, then eighth roots of one: (1 - i) / sqrt 2, -i, (-1 - i) / sqrt 2.
    Points4(re[0], im[0], re[2], im[2], re[4], im[4], re[6], im[6]);
    Points4(re[1], im[1], re[3], im[3], re[5], im[5], re[7], im[7]);
    V er[4] = {re[0], re[2], re[4], re[6]}, ei[4] = {im[0], im[2], im[4], im[6]};
    V dr[4] = {re[1], (re[3] + im[3]) * kHalf, im[5], (im[7] - re[7]) * kHalf};
    V di[4] = {im[1], (im[3] - re[3]) * kHalf, -re[5], -(re[7] + im[7]) * kHalf};
    for (int k = 0; k < 4; ++k) {
      re[k] = er[k] + dr[k], im[k] = ei[k] + di[k];
      re[k + 4] = er[k] - dr[k], im[k + 4] = ei[k] - di[k];
    }
  } else {
    static_assert(kRadix == 16);
    constexpr R kHalf = static_cast<R>(0.707106781186547524400844362104849039);
    constexpr R kCos = static_cast<R>(0.923879532511286756128183189396788287);
    constexpr R kSin = static_cast<R>(0.382683432365089771728459984030398866);
    // Four times four: points four apart, sixteenth roots of one, and the four results of the same number.
    for (int a = 0; a < 4; ++a) {
      Points4(re[a], im[a], re[a + 4], im[a + 4], re[a + 8], im[a + 8], re[a + 12], im[a + 12]);
    }
    const auto turn = [&](int i, R c, R s) {
      const V r = re[i] * c + im[i] * s;
      im[i] = im[i] * c - re[i] * s, re[i] = r;
    };
    turn(5, kCos, kSin), turn(6, kHalf, kHalf), turn(7, kSin, kCos);
    turn(9, kHalf, kHalf), turn(11, -kHalf, kHalf);
    turn(13, kSin, kCos), turn(14, -kHalf, kHalf), turn(15, -kCos, -kSin);
    const V r10 = im[10];
    im[10] = -re[10], re[10] = r10;
    for (int k = 0; k < 16; k += 4) {
      Points4(re[k], im[k], re[k + 1], im[k + 1], re[k + 2], im[k + 2], re[k + 3], im[k + 3]);
    }
    for (int k = 0; k < 4; ++k) {
      for (int l = 0; l < k; ++l) {
        const V r = re[4 * k + l], i = im[4 * k + l];
        re[4 * k + l] = re[4 * l + k], im[4 * k + l] = im[4 * l + k];
        re[4 * l + k] = r, im[4 * l + k] = i;
      }
    }
  }
}

}  // namespace FERRULE_ISA
}  // namespace ferrule
