// Convolution of a clip in channels_last, of stride 1: y[f][i][j][n] = bias[n] + sum over the taps
// (a, b, c) and the inputs k of weight[n][a][b][c][k] * x[f + a][i + b - top][j + c - left][k],
// where x is 0 outside its rows and columns; sums in float32, rounded once. In time nothing is
// padded: `x` has the frames before the first.
//
// Phases make a larger map of it. With side_phases 2, y has twice the rows and columns: pixel
// (2i + p, 2j + q) is what the weights of the phase 2p + q make of the taps around (i + p, j + q).
// A convolution of a map whose pixels were doubled before is such a one, with fewer taps. With
// frame_phases 2, x has the inputs of two frames side by side, and y has both frames.
//
// Pairs of frames need two thirds of the products of three taps in time (Winograd's F(2, 3): Lavin
// and Gray, arXiv:1509.09308). Of a pair d2, d3 and the frames d0, d1 before it, x has four maps:
// d1 + d2, d2 - d1, d0 - d2 and d3 - d1. Of the taps g0, g1, g2, `weight` has (g0 + g1 + g2) / 2,
// (g0 - g1 + g2) / 2, g0, g1, which is not read, and g2. With m0 to m3, the convolutions of each
// map with its weights in space, y[2f] = m0 + m1 + m2 and y[2f + 1] = m0 - m1 + m3. What is rounded
// makes the error of a result a fifth to a third larger.
//
// For compute capability 9.0 alone (wgmma, TMA). A matrix product whose rows are places in the clip
// and whose inputs are those of each tap. Two blocks of a cluster compute 256 places by 96, 192 or
// 256 outputs, or, of pairs, those of both frames by 96 or 128 outputs. One thread of each block
// loads 64 inputs at a time: of 130 places by TMA in im2col mode, which applies the tap's frame and
// row offset and fills in zeros. The taps of a row share that load; each reads it one place
// further. It also loads half of each tap's weights and sends them to both blocks. Two warpgroups
// hold the sums of 64 places each. Rows are padded by the taps' reach, so that a tap's neighbour is
// always the next place; sums of padding places are not written. The last tiles, too few for all
// clusters, are shared where that saves enough: each cluster takes an equal number of their pieces,
// the sums go to a workspace, and a second launch adds them in order.
//
// Bound: arithmetic. 784 TFLOP/s on an H200 with 1024 channels in a short run, where cuDNN reaches
// 583; in pairs as if 1085 (docs/speed.md, "Convolutions of clips").
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

inline constexpr std::int64_t kConv3dMostOutputs = 4096;
// Inputs that are loaded at a time; with two frame phases there must be a multiple of it.
inline constexpr std::int64_t kConv3dPiece = 64;
// Maps of a pair of frames, and what its weights are of each input and tap in space.
inline constexpr std::int64_t kConv3dPairMaps = 4, kConv3dPairWeights = 5;

struct Conv3dArgs {
  // [frames + frame_taps - 1, height, width, frame_phases * inputs], packed; of pairs [4, frames,
  // height, width, inputs]
  const void* x = nullptr;
  // [side_phases^2, outputs, weight_frames(), row_taps, column_taps, inputs], packed but between
  // outputs
  const void* weight = nullptr;
  std::int64_t weight_stride = 0;  // between outputs
  const void* bias = nullptr;      // [outputs], or null; at a multiple of 4 bytes
  // [frames * frame_phases (of pairs frames * 2), y_height * side_phases, y_width * side_phases,
  // outputs], packed
  void* y = nullptr;
  std::int64_t frames = 0, height = 0, width = 0;  // height, width: of x
  std::int64_t inputs = 0, outputs = 0;
  std::int64_t frame_taps = 1, row_taps = 1, column_taps = 1;
  // Rows and columns of zeros before x, from -8 (so many are passed over) to 8. What lies behind x
  // is 0, too.
  std::int64_t top = 0, left = 0;
  std::int64_t y_height = 0, y_width = 0;  // of a phase
  std::int64_t frame_phases = 1, side_phases = 1;
  bool pairs = false;  // `frames` counts them; frame_taps are 4, and no phases
  // Added to the rounded results, which are rounded again then; null: nothing. [frames (of pairs
  // twice as many), y_height, y_width, shortcut_step * outputs], packed: to output n of a phase,
  // counted through frames, rows and columns from shortcut_first on, the channel (n *
  // shortcut_phases + phase) * shortcut_step / shortcut_phases.
  const void* shortcut = nullptr;
  std::int64_t shortcut_step = 1, shortcut_first = 0, shortcut_phases = 1;
  // Of conv3d_workspace(args) bytes, or null: the last tiles are not shared then.
  float* workspace = nullptr;
  DType dtype = DType::bf16;  // of x, weight and bias; the kernel takes bf16 and f16
  // Of y and the shortcut: the same, or f32 beside f16. Results are rounded to `dtype` first.
  DType y_dtype = DType::bf16;

  std::int64_t phases() const { return frame_phases * side_phases * side_phases; }
  std::int64_t y_frames() const { return pairs ? 2 * frames : frames * frame_phases; }
  std::int64_t weight_frames() const { return pairs ? kConv3dPairWeights : frame_taps; }
  std::int64_t x_frames() const {
    return pairs ? kConv3dPairMaps * frames : frames + frame_taps - 1;
  }
};

// Pixels of x, y, the shortcut and the weights must begin and end at multiples of 16 bytes.
const char* conv3d_unsupported(const Conv3dArgs& args);
// Whether the current device is of compute capability 9.0 and the build has code for it.
bool conv3d_runs_here();
// Bytes of a workspace with which the call is faster on the current device; 0: it needs none.
std::int64_t conv3d_workspace(const Conv3dArgs& args);
const char* conv3d(const Conv3dArgs& args, CUstream_st* stream);
void conv3d_ref(const Conv3dArgs& args);

}  // namespace diptych::kernels
