// What the flags and variables of a request say, as texts: which of several names was given, how
// often, and where that was.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/config/resolve.h"

namespace diptych {

struct Given {
  std::string text, origin;  // origin: "--steps", "DIPTYCH_STEPS"
};

// `flags`: of a field or group, as Field::flags has them. A model that is named as on the hub is
// given by its folder. All throw InputError naming the flag or variable.
class GivenTexts {
 public:
  explicit GivenTexts(const Sources& sources);  // which must outlive this

  // Several texts of a list are one, with ; between. Throws where another flag is given twice.
  std::optional<Given> from_flags(std::string_view flags) const;
  // An empty variable counts as none. Throws where two names of one flag say different things.
  std::optional<Given> from_environment(std::string_view flags) const;
  // By the flag, else by the variable, of a field that all families have.
  std::optional<Given> of(std::string_view field) const;

  // What other programs call a flag may be another family's own; among `fields`, which have it not,
  // it stays another name.
  void take_other_names(std::span<const Field> fields);
  // The only family that has a flag which was given, and that flag; null where there is none.
  std::pair<const FamilyConfig*, std::string> family_of_flags() const;

 private:
  Given located(Given given, std::string_view flags) const;

  const Sources& sources_;
  std::vector<Field> flag_fields_;
  std::map<std::string, std::vector<std::string>> flags_;  // by `flags`
  std::map<std::string, std::string> called_;  // likewise: a name of it that was given instead
  mutable std::map<std::string, std::string> folders_;  // of models that were located
};

}  // namespace diptych
