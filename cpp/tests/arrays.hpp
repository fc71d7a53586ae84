// Arrays of matrices that end at a guard page.
#pragma once

#include "testing.hpp"

template <class T>
struct Array {
  Array(std::int64_t matrices, std::int64_t rows, std::int64_t columns, int step, unsigned seed)
      : rows(rows), columns(columns), step(step),
        elements(matrices * rows * columns == 0 ? 0 : (matrices * rows * columns - 1) * step + 1) {
    if (seed) elements.fill_normal(seed);
  }
  T& at(std::int64_t matrix, std::int64_t row, std::int64_t column) const {
    return elements[((matrix * rows + row) * columns + column) * step];
  }
  Operand operand_of(std::int64_t heads) const { return operand(elements.data(), heads, rows, columns, step); }
  std::int64_t rows, columns;
  int step;
  Guarded<T> elements;
};
