#include "lib/session/kernel_report.h"

#include <doctest/doctest.h>

namespace diptych {
namespace {

const std::string kNorm =
    "void diptych::kernels::(anonymous namespace)::rms_norm_kernel<float>(int)";
const std::string kRope = "void diptych::kernels::qk_norm_rope_kernel<float>(int)";
const std::string kProduct = "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT";
const std::string kQkv = "qkv_proj gen";
const std::string kOther = "void at::native::reduce_kernel<512, 1, float>(int)";

// Two pictures of two steps each, a layer's first kernels: the first step launched one by one, the
// second one as a graph. Times in microseconds.
Launches launched() {
  Launches all;
  for (std::int64_t picture = 0; picture < 2; ++picture) {
    const std::int64_t begin = picture * 1'000'000'000;
    std::vector<GpuActivity>& scope = all.scopes.emplace_back();
    const auto add = [&](const std::string& name, const std::string& label, std::int64_t start_us,
                         std::int64_t end_us, std::uint64_t launch) {
      scope.push_back({name, true, begin + 1000 * start_us, begin + 1000 * end_us, launch, label});
    };
    add(kNorm, "norm", 0, 100, 1);
    add(kProduct, kQkv, 150, 1150, 2);                        // 50 idle
    add(kRope, "qk norm, rope, cache write", 1200, 1300, 3);  // 50 idle
    add(kNorm, "norm", 1400, 1500, 4);                        // 100 idle, the graph's first
    add(kProduct, kQkv, 1510, 2510, 4);                       // 10 idle
    add(kRope, "qk norm, rope, cache write", 2500, 2620, 4);  // overlaps
    add(kOther, "", 2630, 2650, 4);                           // 10 idle
  }
  return all;
}

std::vector<StepKindWork> kinds() {
  return {{2, 1, {{"qkv_proj gen", 8e11, 3e8}, {"norm", 0, 4e8}}, 0},
          {1, 1, {{"qkv_proj gen", 4e11, 1e8}, {"norm", 0, 2e8}}, 0}};
}

const DevicePeaks kPeaks = {8e14, 0, 4e12};

TEST_CASE("make_kernel_table: means of a step, its idle time, and shares of the peaks") {
  const KernelTable table = make_kernel_table(launched(), 4, kinds(), kPeaks);
  CHECK(table.seconds == doctest::Approx(2650e-6 / 2));
  CHECK(table.idle_between == doctest::Approx(200e-6 / 2));
  CHECK(table.idle_in_graphs == doctest::Approx(20e-6 / 2));
  REQUIRE(table.rows.size() == 4);
  const KernelRow& product = table.rows[0];
  CHECK(product.family == "qkv_proj gen");
  CHECK(product.launches == 1);
  CHECK(product.seconds == doctest::Approx(1e-3));
  CHECK(product.flops == doctest::Approx(6e11));
  CHECK(product.bytes == doctest::Approx(2e8));
  CHECK(product.share_of_peak == doctest::Approx(0.75));  // 600 of 800 TFLOP/s
  CHECK(table.rows[1].family == "qk norm, rope, cache write");
  CHECK(table.rows[1].bytes == 0);
  CHECK(table.rows[2].family == "norm");
  CHECK(table.rows[2].share_of_peak == doctest::Approx(0.75));  // 3000 of 4000 GB/s
  CHECK(table.rows[3].family == "at::native::reduce_kernel");
  CHECK(table.rows[3].launches == 0.5);
}

TEST_CASE("make_kernel_table: a product of e4m3 is held against e4m3's peak") {
  std::vector<StepKindWork> fp8 = kinds();
  for (StepKindWork& kind : fp8) kind.work[0].fp8 = true;
  const KernelTable table = make_kernel_table(launched(), 4, fp8, {8e14, 1.2e15, 4e12});
  CHECK(table.rows[0].share_of_peak == doctest::Approx(0.5));
}

TEST_CASE("make_kernel_table: a family is a label, a kernel's name, or copies") {
  const auto family = [](const std::string& name, const std::string& label, bool kernel = true) {
    Launches one;
    one.scopes = {{{name, kernel, 0, 100, 1, label}}};
    return make_kernel_table(one, 1, kinds(), kPeaks).rows.at(0).family;
  };
  CHECK(family(kProduct, "o_proj und") == "o_proj und");
  CHECK(family("Memset (Device)", "o_proj und", false) == "copies and fills");
  CHECK(family(kProduct, "") == kProduct);
  CHECK(family(kNorm, "") == "diptych::kernels::rms_norm_kernel");
  CHECK(family("void at::native::(anonymous namespace)::CatArrayBatchedCopy<A<2u>, 64>(A<2u>*)",
               "") == "at::native::CatArrayBatchedCopy");
}

TEST_CASE("kernel_table_text: graphs without labels are told of once") {
  Launches graphs = launched();
  CHECK_FALSE(kernel_table_json(make_kernel_table(graphs, 4, kinds(), kPeaks))
                  .contains("unlabelled_graph_launches"));
  graphs.unlabelled_graphs = 3;
  const KernelTable table = make_kernel_table(graphs, 4, kinds(), kPeaks);
  CHECK(kernel_table_text(table, "bfloat16")
            .ends_with("%\n  3 launches of CUDA graphs ran other kernels than were captured: these "
                       "are listed by name\n"));
  CHECK(kernel_table_json(table)["unlabelled_graph_launches"] == 3);
}

TEST_CASE("kernel_table_text: a line a family") {
  const std::string text =
      kernel_table_text(make_kernel_table(launched(), 4, kinds(), kPeaks), "bfloat16");
  CHECK(
      text ==
      "  kernels of a mean step, under the profiler: 1.325 ms, of these idle 0.010 ms inside CUDA "
      "graphs and 0.100 ms between launches\n"
      "  peaks, measured: 800 TFLOP/s bfloat16, 4000 GB/s copied\n"
      "                                                 count        ms   share        MB    TFLOP"
      "  TFLOP/s   GB/s of peak\n"
      "  qkv_proj gen                                     1.0     1.000   75.5%     200.0    0.600"
      "      600    200   75.0%\n"
      "  qk norm, rope, cache write                       1.0     0.110    8.3%\n"
      "  norm                                             1.0     0.100    7.5%     300.0         "
      "            3000   75.0%\n"
      "  at::native::reduce_kernel                        0.5     0.010    0.8%\n");
}

TEST_CASE("kernel_table_json: what is not known is not there") {
  const auto json = kernel_table_json(make_kernel_table(launched(), 4, kinds(), kPeaks));
  CHECK(json["idle_between_launches_seconds"].get<double>() == doctest::Approx(1e-4));
  CHECK(json["peak_flops_per_second"] == 8e14);
  CHECK_FALSE(json.contains("peak_fp8_flops_per_second"));
  REQUIRE(json["families"].size() == 4);
  const auto& product = json["families"][0];
  CHECK(product["family"] == "qkv_proj gen");
  CHECK(product["flops_per_second"].get<double>() == doctest::Approx(6e14));
  CHECK(product["bytes_per_second"].get<double>() == doctest::Approx(2e11));
  CHECK(product["share"].get<double>() == doctest::Approx(1.0 / 1.325));
  CHECK_FALSE(json["families"][1].contains("bytes"));
  CHECK(json["families"][2].contains("bytes"));
  CHECK_FALSE(json["families"][2].contains("flops"));
}

std::vector<FloorPair> floor_pairs() {
  std::vector<FloorPair> pairs;
  for (const double slower : {1.0, 1.1, 1.2})
    pairs.push_back({9 * slower, {{2, 40, {}, 0.16}, {1, 9, {}, 0.08 * slower}}});
  return pairs;
}

TEST_CASE("floor: of an image the sum over its steps, the ratio run by run") {
  const std::vector<FloorPair> pairs = floor_pairs();
  CHECK(pairs[0].floor_seconds() == doctest::Approx(7.12));
  CHECK(floor_text(pairs) ==
        "  floor (products and attention alone, a CUDA graph): 7.1920 s an image; 40 steps of 2 "
        "branches, 160.000 ms each; 9 steps of 1 branch, 88.000 ms each\n"
        "  denoise / floor 1.3765  (quartiles 1.3203 to 1.4317)\n");
  const auto json = floor_json(pairs);
  CHECK(json["seconds_per_image"]["median"].get<double>() == doctest::Approx(7.192));
  CHECK(json["denoise_over_floor"]["min"].get<double>() == doctest::Approx(9 / 7.12));
  CHECK(json["denoise_over_floor"]["median"].get<double>() == doctest::Approx(9.9 / 7.192));
  CHECK(json["steps"][0]["branches"] == 2);
  CHECK(json["steps"][0]["steps"] == 40);
  CHECK(json["steps"][1]["seconds"]["max"].get<double>() == doctest::Approx(0.096));
  CHECK(json["steps"][1]["seconds"]["iqr"].get<double>() == doctest::Approx(0.008));
}

}  // namespace
}  // namespace diptych
