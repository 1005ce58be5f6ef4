"""
Organize any matrix
===================

The questionnaire takes any array.
"""

import headscape as hs

hs.list_models()
