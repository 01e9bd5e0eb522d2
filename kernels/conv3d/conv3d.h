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
// For compute capability 9.0 alone (wgmma, TMA). A matrix product whose rows are places in the clip
// and whose inputs are those of each tap: two blocks of a cluster compute 256 places by 96, 192 or
// 256 outputs. Of a block, one thread fetches pieces of 64 inputs: of 130 places, which the
// accelerator finds, moves by a tap's frame and row and fills up with zeros (im2col mode), once for
// the taps of a row, which see them one place further each; and of weights, half of a tap's for
// both blocks. Two warpgroups hold the sums of 64 places each. So that a tap's neighbour is the
// next place, too, at the end of a row, each row has as many places more as the taps reach beyond
// it, whose sums nobody writes. Of the last tiles, too few for all clusters, each cluster takes an
// equal share of the pieces where that saves enough; their sums go to a workspace, and a second
// launch adds them in order.
//
// Bound: arithmetic.
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

struct Conv3dArgs {
  // [frames + frame_taps - 1, height, width, frame_phases * inputs], packed
  const void* x = nullptr;
  // [side_phases^2, outputs, frame_taps, row_taps, column_taps, inputs], packed but between outputs
  const void* weight = nullptr;
  std::int64_t weight_stride = 0;  // between outputs
  const void* bias = nullptr;      // [outputs], or null
  // [frames * frame_phases, y_height * side_phases, y_width * side_phases, outputs], packed
  void* y = nullptr;
  std::int64_t frames = 0, height = 0, width = 0;  // height, width: of x
  std::int64_t inputs = 0, outputs = 0;
  std::int64_t frame_taps = 1, row_taps = 1, column_taps = 1;
  std::int64_t top = 0, left = 0;          // rows and columns of zeros before x, 0 or 1 with phases
  std::int64_t y_height = 0, y_width = 0;  // of a phase; what lies behind x is 0, too
  std::int64_t frame_phases = 1, side_phases = 1;
  // Added to the rounded results, and rounded again; null: nothing. [frames, y_height, y_width,
  // shortcut_step * outputs], packed: to output n of a phase, counted through frames, rows and
  // columns from shortcut_first on, the channel (n * shortcut_phases + phase) * shortcut_step /
  // shortcut_phases.
  const void* shortcut = nullptr;
  std::int64_t shortcut_step = 1, shortcut_first = 0, shortcut_phases = 1;
  // Of conv3d_workspace(args) bytes, or null: the last tiles are not shared then.
  float* workspace = nullptr;
  DType dtype = DType::bf16;  // the kernel takes bf16 and f16

  std::int64_t phases() const { return frame_phases * side_phases * side_phases; }
};

// Pixels of x and y must begin and end at multiples of 16 bytes.
const char* conv3d_unsupported(const Conv3dArgs& args);
// Whether the current device is of compute capability 9.0 and the build has code for it.
bool conv3d_runs_here();
// Bytes of a workspace with which the call is faster on the current device; 0: it needs none.
std::int64_t conv3d_workspace(const Conv3dArgs& args);
const char* conv3d(const Conv3dArgs& args, CUstream_st* stream);
void conv3d_ref(const Conv3dArgs& args);

}  // namespace diptych::kernels
