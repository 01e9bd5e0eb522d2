#include "lib/sampling/preconditioning.h"

#include <doctest/doctest.h>

namespace diptych {

TEST_CASE("preconditioning of a rectified flow") {
  const Preconditioning most = Preconditioning::rectified_flow(80);
  CHECK(most.time == 80.0F / 81.0F);
  CHECK(most.c_in == 1 - most.time);
  CHECK(most.c_skip == most.c_in);
  CHECK(most.c_out == -most.time);
  const Preconditioning none = Preconditioning::rectified_flow(0);
  CHECK(none.time == 0);
  CHECK(none.c_in == 1);
  CHECK_THROWS_AS(Preconditioning::rectified_flow(-1), c10::Error);

  // x0 + sigma * noise goes in as (1 - t) x0 + t noise; of a network that knows the answer, noise -
  // x0, comes x0.
  const Tensor x0 = at::tensor({1.0F, -2.0F, 0.5F}), noise = at::tensor({0.3F, 0.1F, -4.0F});
  const Preconditioning at_3 = Preconditioning::rectified_flow(3);
  const Tensor x = x0 + 3 * noise;
  CHECK(at::allclose(at_3.input(x), 0.25 * x0 + 0.75 * noise));
  CHECK(at::allclose(at_3.denoised(x, noise - x0), x0, 1e-5, 1e-6));
  const Tensor half = at_3.denoised(x, (noise - x0).to(at::kBFloat16));
  CHECK((half.scalar_type() == at::kFloat));
  CHECK(at::allclose(half, x0, 0.05, 0.05));
}

TEST_CASE("known frames of a clip") {
  CHECK(frame_times(0.5F, 0.25F, 2, 3).equal(at::tensor({0.25F, 0.25F, 0.5F})));
  CHECK(frame_times(0.5F, 0.25F, 0, 1).equal(at::tensor({0.5F})));
  CHECK_THROWS_AS(frame_times(0.5F, 0.25F, 3, 2), c10::Error);
  const Tensor x = at::zeros({2, 1, 3, 2, 2}), given = at::ones({1, 1, 1, 2, 2});
  const Tensor mixed = with_known_frames(x, given, 1);
  CHECK(mixed.select(2, 0).eq(1).all().item<bool>());
  CHECK(mixed.narrow(2, 1, 2).eq(0).all().item<bool>());
  CHECK(x.eq(0).all().item<bool>());
  CHECK(with_known_frames(x, given, 0).is_same(x));
  CHECK_THROWS_AS(with_known_frames(x, given, 2), c10::Error);
}

}  // namespace diptych
