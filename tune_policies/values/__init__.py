"""The words that all else uses: units, amounts, errors."""
